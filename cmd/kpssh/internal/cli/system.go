package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// System is the environment of this process.
func System(version string) *Env {
	exe, err := os.Executable()
	if err != nil {
		exe = ""
	}
	colour := func(f *os.File) bool {
		return term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	}
	return &Env{
		Prog:       ProgName(os.Args[0]),
		Version:    version,
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		Getenv:     os.Getenv,
		Now:        time.Now,
		Colour:     colour(os.Stderr),
		ColourOut:  colour(os.Stdout),
		ReadSecret: readSecret,
		Executable: exe,
	}
}

// readSecret asks on the terminal itself, because stdin may be a manifest and stderr a log.
func readSecret(prompt string) ([]byte, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, ErrNoTerminal
	}
	defer tty.Close()
	fd := int(tty.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, ErrNoTerminal
	}
	// An interrupt must not leave the user's terminal without echo.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)
	type answer struct {
		secret []byte
		err    error
	}
	read := make(chan answer, 1)
	fmt.Fprint(tty, prompt)
	go func() {
		secret, err := term.ReadPassword(fd)
		read <- answer{secret, err}
	}()
	select {
	case a := <-read:
		fmt.Fprintln(tty)
		return a.secret, a.err
	case <-stop:
		fmt.Fprintln(tty)
		return nil, errors.Join(errors.New("interrupted"), term.Restore(fd, before))
	}
}
