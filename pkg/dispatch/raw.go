package dispatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// rawShell runs standard input as root, for so many seconds and ten more. Root itself needs no sudo,
// and may not have it.
const rawShell = `sh -c 'LC_ALL=C; export LC_ALL; set -- timeout -k 10 %d bash --noprofile --norc -s; ` +
	`if [ "$(id -u)" = 0 ]; then exec "$@"; fi; exec sudo -n "$@"'`

// Exit statuses of timeout(1), and of a shell that finds no command.
const (
	exitTimeout  = 124
	exitKilled   = 137
	exitNotFound = 127
)

func (d *Dispatcher) runRaw(ctx context.Context, host Host, r Request) (*Result, error) {
	out, clean := newOutput(), newCleaner(r.Secrets)
	err := d.raw(ctx, host, &r, out, func(*remote.Conn) {})
	d.noteRaw(host, &r, err)
	if err == nil {
		return &Result{Output: out.text(clean)}, nil
	}
	var e *Error
	if errors.As(err, &e) && e.Output == "" {
		e.Output = out.text(clean)
	}
	return nil, err
}

// raw runs a script without a shim and writes what it prints to out. It shows the connection to
// connected.
func (d *Dispatcher) raw(ctx context.Context, host Host, r *Request, out io.Writer, connected func(*remote.Conn)) error {
	if !d.options.AllowRaw {
		return &Error{Class: Config, Reason: ReasonRawNotAllowed, Detail: "execMode Raw is refused: the controller was not started with --allow-raw-exec"}
	}
	input, mark, err := rawInput(r)
	if err != nil {
		return &Error{Class: Config, Reason: ReasonRequest, Detail: err.Error()}
	}
	limit := r.Timeout + d.options.ReceiptMargin
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, release, err := d.options.Pool.Get(limited, host.Target)
	if err != nil {
		return err
	}
	defer release()
	d.options.Logins.note(host, conn)
	connected(conn)
	began := time.Now()
	stream, err := conn.Start(limited, fmt.Sprintf(rawShell, int64(r.Timeout/time.Second)))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	go func() {
		if _, err := stream.Write(input); err == nil {
			_ = stream.CloseWrite()
		}
	}()
	marked := &afterMark{mark: mark, next: out}
	_, err = io.Copy(marked, stream)
	if err == nil {
		err = stream.Wait()
	}
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return &Error{Class: Timeout, Reason: ReasonNoReceipt, Detail: fmt.Sprintf("script did not end within %v", limit)}
	}
	return rawVerdict(err, marked, stream, r.Timeout, time.Since(began))
}

func rawVerdict(err error, marked *afterMark, stream *remote.Stream, timeout, took time.Duration) error {
	var exit *remote.ExitError
	var broken *Error
	switch {
	case err == nil && marked.found:
		return nil
	case errors.As(err, &broken):
		return broken
	case err == nil:
		return &Error{Class: Untrusted, Reason: ReasonNoHello, Detail: "login shell did not run the script", Output: stream.Stderr()}
	case !errors.As(err, &exit):
		return interrupted(err)
	case !marked.found:
		return sudoTrouble(exit)
	case exit.Code == exitTimeout || exit.Code == exitKilled && took >= timeout:
		return &Error{Class: Timeout, Reason: ReasonDeadline, Detail: fmt.Sprintf("ended by its deadline of %v", timeout)}
	case exit.Signal != "":
		return &Error{Class: ScriptFailed, Reason: ReasonSignal, Detail: "killed by " + exit.Signal}
	}
	return &Error{Class: ScriptFailed, Reason: ReasonExit, ExitCode: exit.Code, Detail: fmt.Sprintf("exit status %d", exit.Code)}
}

// sudoTrouble names why the script never began. sudo and sudo-rs say so in different words and with
// the same exit status; LC_ALL=C keeps them in English.
func sudoTrouble(exit *remote.ExitError) error {
	said := strings.ToLower(exit.Stderr())
	e := &Error{Class: Refused, Reason: ReasonSudoNotPermitted, Detail: "sudo does not let the user run bash as root", Output: exit.Stderr()}
	switch {
	case strings.Contains(said, "password is required") || strings.Contains(said, "authentication is required"):
		e.Reason, e.Detail = ReasonSudoPassword, "sudo asks for a password: give the user NOPASSWD"
	case strings.Contains(said, "must have a tty"):
		e.Reason, e.Detail = ReasonSudoRequiresTTY, "sudo wants a terminal: set !requiretty for the user"
	case exit.Code == exitNotFound || strings.Contains(said, "not found"):
		e.Reason, e.Detail = ReasonSudoUnavailable, "sudo, timeout or bash is missing on the host"
	}
	return e
}

// rawName is what may stand left of "=" in the preamble.
var rawName = regexp.MustCompile(`^KPSSH_[A-Z0-9_]+$`)

// rawInput is what the root shell reads: the environment, and the script, which that shell hands to
// another one so that no command of it can read the rest from standard input. Values appear in no
// argument list. The mark, printed first, tells the script's output from all that a login prints.
func rawInput(r *Request) (input []byte, mark string, err error) {
	if bytes.IndexByte(r.Script, 0) >= 0 {
		return nil, "", errors.New("script holds a NUL byte")
	}
	mark = "KPSSH-RAW-" + rand.Text()
	var b bytes.Buffer
	fmt.Fprintf(&b, "printf '%%s\\n' '%s'\nexec 2>&1\nunset LC_ALL\ncd /\n", mark)
	b.WriteString("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8\n")
	for _, values := range []map[string]string{r.Parameters, r.Secrets} {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if !rawName.MatchString(name) {
				return nil, "", fmt.Errorf("parameter name %.80q is not a KPSSH_ name", name)
			}
			if strings.IndexByte(values[name], 0) >= 0 {
				return nil, "", fmt.Errorf("parameter %s holds a NUL byte", name)
			}
			fmt.Fprintf(&b, "export %s='%s'\n", name, strings.ReplaceAll(values[name], "'", `'\''`))
		}
	}
	end := "KPSSH-END-" + rand.Text()
	fmt.Fprintf(&b, "exec bash --noprofile --norc /dev/fd/3 3<<'%s' </dev/null\n%s\n%s\n", end, r.Script, end)
	return b.Bytes(), mark, nil
}

// maxRawNoise bounds what a login may print before the script begins.
const maxRawNoise = 64 << 10

// afterMark passes on what comes after a line with the mark.
type afterMark struct {
	mark  string
	next  io.Writer
	found bool
	seen  []byte
}

// Write implements io.Writer.
func (m *afterMark) Write(p []byte) (int, error) {
	if m.found {
		return m.next.Write(p)
	}
	if len(m.seen) > maxRawNoise {
		return 0, violation("more than %d bytes before the script began", maxRawNoise)
	}
	m.seen = append(m.seen, p...)
	_, rest, found := bytes.Cut(m.seen, []byte(m.mark+"\n"))
	if !found {
		return len(p), nil
	}
	m.found, m.seen = true, nil
	_, err := m.next.Write(rest)
	return len(p), err
}
