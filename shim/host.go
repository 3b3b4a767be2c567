package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// Files of the state directory, besides those of trust.go and slots.go.
const (
	hostFile  = "host.json"
	keyFile   = "receipt.key"
	spoolFile = "spool"
	runLock   = "run.lock"
	scriptDir = "scripts"

	// keyBlock marks the scalar of a P-256 key. It is no PKCS #8: nothing but the shim reads it. The label names the
	// algorithm, since 32 bytes of another one would be taken for a key that nobody enrolled.
	keyBlock = "KPSSH P-256 RECEIPT KEY"
)

// Build is what the build put into the binary.
type Build struct {
	Version string
	// Time is when the source of the build was made: no clock is believed to be before it. Zero
	// when the build does not say.
	Time time.Time
}

// Posture is what the doctor found of a host's hardening, and the digest of the shim that runs.
type Posture struct {
	Findings   []string `json:"findings"`
	ShimDigest string   `json:"shimDigest"`
}

// Config says where a host keeps what, and lets tests stand in for what only a host has.
type Config struct {
	// State is the directory that only the shim's user may enter.
	State string
	Build Build
	// Log takes one line for each refusal and each run.
	Log io.Writer
	// Now is the host's clock, which is not believed to be right.
	Now func() time.Time
	// Posture is asked once a session.
	Posture func() Posture
	// BootID names the boot; runs of another one are over.
	BootID string
	// Subreaper says that orphans of scripts fall to this process.
	Subreaper bool

	root      string            // tests look for leftovers below it
	termGrace time.Duration     // tests do not wait ten seconds
	fault     func(step string) // tests die here
}

// Host is an enrolled host: its identity and its state, open.
type Host struct {
	cfg    Config
	dir    *dir
	id     string
	signer signing.Signer
	exec   executor
}

// hostIdentity is the file that enrolment writes.
type hostIdentity struct {
	HostID string `json:"hostID"`
}

// Open opens a host's state. It refuses with not-enrolled when there is none, and with
// state-unwritable when somebody else could have written it.
func Open(cfg Config) (*Host, error) {
	d, err := openDir(cfg.State, os.Geteuid())
	if err != nil {
		return nil, stateRefusal(err)
	}
	d.fault = cfg.fault
	h := &Host{cfg: cfg, dir: d}
	if err := h.load(); err != nil {
		d.close()
		return nil, stateRefusal(err)
	}
	return h, nil
}

func stateRefusal(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(signing.ReasonNotEnrolled, "%v", err)
	}
	return unwritable(err)
}

func (h *Host) load() error {
	data, err := h.dir.read(hostFile, 4<<10)
	if err != nil {
		return err
	}
	var identity hostIdentity
	if err := json.Unmarshal(data, &identity); err != nil {
		return fmt.Errorf("reading host identity: %w", err)
	}
	h.id = identity.HostID
	if h.signer, err = readReceiptKey(h.dir); err != nil {
		return err
	}
	home := "/root"
	if os.Geteuid() != 0 {
		home = "/"
	}
	h.exec = executor{home: home, subreaper: h.cfg.Subreaper, termGrace: h.cfg.termGrace}
	h.exec.shell, err = findShell()
	return err
}

// Close releases the host's state.
func (h *Host) Close() { h.dir.close() }

// runState reads who holds the host and what ran last, telling a run that goes on from one whose
// process or boot is gone.
func (h *Host) runState() (record, error) {
	rec, err := peekSlots(h.dir)
	if err != nil || rec.Run == nil || rec.Run.State != signing.RunStarted {
		return rec, err
	}
	alive := rec.Run.Receipt.BootID == h.cfg.BootID
	if alive {
		if alive, err = h.dir.locked(runLock); err != nil {
			return rec, err
		}
	}
	if alive {
		return rec, nil
	}
	// The lock may have been let go because the run ended since the state was read.
	if again, err := peekSlots(h.dir); err != nil || again.Run == nil || again.Run.State != signing.RunStarted {
		return again, err
	}
	rec.Run.State = signing.RunInterrupted
	rec.Run.Receipt.Outcome = signing.OutcomeInterrupted
	return rec, nil
}

// runRef is how a hello names the last run.
func (r *lastRun) ref() *signing.RunRef {
	if r == nil {
		return nil
	}
	c := r.Receipt
	return &signing.RunRef{
		Order: c.Order, Claim: c.Claim, Profile: c.Profile, Version: c.Version, Phase: c.Phase,
		Script: c.Script, BootID: c.BootID, State: r.State, Outcome: c.Outcome, Deadline: r.DeadlineSeconds,
	}
}

// BootID reads the id of this boot.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// clockSynced asks the kernel whether something keeps the clock right.
func clockSynced() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}
