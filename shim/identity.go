package shim

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"golang.org/x/sys/unix"
)

// MakeIdentity gives a host what enrolment needs and makes nothing twice: the state directory, a
// random host id, a receipt key, the first root, and the files that a run must not have to make on
// a full disk. With reset, the root replaces the one that the host has, whatever their versions,
// and the allowlist goes with it: break-glass, for whoever is root on the host.
func MakeIdentity(state string, root []byte, reset bool) error {
	if err := os.Mkdir(state, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making state directory: %w", err)
	}
	d, err := openDir(state, os.Geteuid())
	if err != nil {
		return err
	}
	defer d.close()
	l, err := d.waitLock(trustLock)
	if err != nil {
		return err
	}
	defer l.release()
	if err := firstTrust(d, root, reset); err != nil {
		return err
	}
	if err := preallocate(d); err != nil {
		return err
	}
	if err := once(d, keyFile, newReceiptKey); err != nil {
		return err
	}
	// The host's id comes last: a host that has one is enrolled.
	return once(d, hostFile, func() ([]byte, error) {
		id := make([]byte, 16)
		if _, err := rand.Read(id); err != nil {
			return nil, err
		}
		return json.Marshal(hostIdentity{HostID: hex.EncodeToString(id)})
	})
}

func firstTrust(d *dir, root []byte, reset bool) error {
	_, err := d.read(rootFile, maxRootFile)
	if err == nil && !reset {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := signing.OpenFirstRoot(root); err != nil {
		return fmt.Errorf("opening root: %w", err)
	}
	if err := d.remove(allowlistFile); err != nil {
		return err
	}
	return d.write(rootFile, root)
}

// preallocate makes every file that sessions write, so that none of them needs space later.
func preallocate(d *dir) error {
	store, _, err := openSlots(d)
	if err != nil {
		return err
	}
	store.close()
	spool, err := openSpool(d)
	if err != nil {
		return err
	}
	_ = spool.Close()
	trail, err := openTrail(d)
	if err != nil {
		return err
	}
	trail.close()
	scripts, err := d.sub(scriptDir)
	if err != nil {
		return err
	}
	scripts.close()
	f, err := d.open(runLock, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	return f.Close()
}

// once writes a file unless it is there.
func once(d *dir, name string, content func() ([]byte, error)) error {
	_, err := d.read(name, 4<<10)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data, err := content()
	if err != nil {
		return fmt.Errorf("making %q: %w", name, err)
	}
	return d.write(name, data)
}

// newReceiptKey makes a P-256 key. Every session starts a process that signs: the tables that ed25519 computes before
// its first signature cost more than the rest of the session's signatures and checks together, and those of P-256 are
// part of the program.
func newReceiptKey() ([]byte, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	scalar, err := private.Bytes()
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: scalar}), nil
}

func readReceiptKey(d *dir) (signing.Signer, error) {
	data, err := d.read(keyFile, 4<<10)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != keyBlock {
		return nil, fmt.Errorf("%q is no P-256 receipt key: remove it, run \"%s enroll\" and enrol the host again", d.path+"/"+keyFile, wire.ShimPath)
	}
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", keyFile, err)
	}
	return signing.NewSigner(private)
}

// ID is the host's identity, made at enrolment.
func (h *Host) ID() string { return h.id }

// ReceiptKey is the key that the host's hellos and receipts verify under.
func (h *Host) ReceiptKey() signing.Key { return h.signer.Public() }
