package cli

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
)

// ErrNoTerminal is returned by Env.ReadSecret when nobody can be asked.
var ErrNoTerminal = errors.New("there is no terminal to ask on")

// PassphraseVariable may hold the passphrase of key files.
const PassphraseVariable = "KPSSH_PASSPHRASE"

// cosignVariable is where users of cosign have the passphrase of the keys that it made.
const cosignVariable = "COSIGN_PASSWORD"

// shortest keeps the likes of "test" from guarding a root key.
const shortest = 8

// Passphrase is where a verb takes the passphrase of key files from.
type Passphrase struct {
	File string
	None bool

	read []byte // of File, which may be stdin: there is one of that, also for several keys
}

// Flags registers --passphrase-file, and --no-passphrase for verbs that make keys.
func (p *Passphrase) Flags(fs *flag.FlagSet, makes bool) {
	fs.StringVar(&p.File, "passphrase-file", "", "")
	if makes {
		fs.BoolVar(&p.None, "no-passphrase", false, "")
	}
}

// New returns the passphrase for new key files, nil with --no-passphrase.
func (p *Passphrase) New(env *Env, what string) ([]byte, error) {
	if p.None {
		if p.File != "" {
			return nil, Usagef("--no-passphrase and --passphrase-file exclude each other")
		}
		return nil, nil
	}
	pass, err := p.given(env)
	if pass == nil && err == nil {
		pass, err = p.askTwice(env, what)
	}
	if err != nil {
		return nil, err
	}
	if len(pass) < shortest {
		return nil, Hint(fmt.Errorf("the passphrase is shorter than %d characters", shortest),
			"take a longer one, or --no-passphrase for a lab")
	}
	return pass, nil
}

func (p *Passphrase) askTwice(env *Env, what string) ([]byte, error) {
	first, err := p.ask(env, "New passphrase for "+what+": ")
	if err != nil {
		return nil, err
	}
	second, err := p.ask(env, "The same again: ")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		return nil, errors.New("the two passphrases differ; nothing was written")
	}
	return first, nil
}

// Open returns the passphrase of the existing key file at path. Call it only for encrypted files.
func (p *Passphrase) Open(env *Env, path string) ([]byte, error) {
	pass, err := p.given(env)
	if pass != nil || err != nil {
		return pass, err
	}
	if v := env.Getenv(cosignVariable); v != "" {
		return []byte(v), nil
	}
	return p.ask(env, fmt.Sprintf("Passphrase for %s: ", path))
}

// Wrong says of a passphrase that Open gave that it does not open ref, where it came from, and what to do: with a
// variable that somebody forgot, nobody was asked.
func (p *Passphrase) Wrong(env *Env, ref string) error {
	source, hint := "", "call it again, and mind the keyboard's layout; each key file may have another passphrase"
	switch {
	case p.File == "-":
		source, hint = " from standard input", "without --passphrase-file you are asked, for each key file by name"
	case p.File != "":
		source, hint = " from "+p.File, "without --passphrase-file you are asked, for each key file by name"
	case env.Getenv(PassphraseVariable) != "":
		source, hint = " from the variable "+PassphraseVariable, "unset "+PassphraseVariable+" to be asked, for each key file by name, or use --passphrase-file FILE"
	case env.Getenv(cosignVariable) != "":
		source, hint = " from the variable "+cosignVariable, "unset "+cosignVariable+" to be asked, for each key file by name, or use --passphrase-file FILE"
	}
	return Hint(fmt.Errorf("the passphrase%s does not open %q", source, ref), "%s", hint)
}

func (p *Passphrase) given(env *Env) ([]byte, error) {
	if p.read != nil {
		return bytes.Clone(p.read), nil
	}
	if p.File != "" {
		if info, err := os.Stat(p.File); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
			env.Warnf("%s can be read by others; chmod 600 it", p.File)
		}
		data, err := env.Read(p.File)
		if err != nil {
			return nil, fmt.Errorf("reading the passphrase: %w", err)
		}
		line, _, _ := bytes.Cut(data, []byte("\n"))
		p.read = append([]byte{}, bytes.TrimSuffix(line, []byte("\r"))...)
		return bytes.Clone(p.read), nil
	}
	if v := env.Getenv(PassphraseVariable); v != "" {
		return []byte(v), nil
	}
	return nil, nil
}

func (p *Passphrase) ask(env *Env, prompt string) ([]byte, error) {
	pass, err := env.ReadSecret(prompt)
	if errors.Is(err, ErrNoTerminal) {
		return nil, Hint(errors.New("a passphrase is needed, and there is no terminal to ask on"),
			"use --passphrase-file FILE or the variable %s (for a lab, keys without one: --no-passphrase)", PassphraseVariable)
	}
	return pass, err
}
