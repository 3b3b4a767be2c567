package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const vectorFolder = "../test/vectors/"

// published is a case of test/vectors, whose README says what its files are.
type published struct {
	path, kind, verdict string

	HostID    string
	Challenge []byte
	At        *time.Time
	Floor     int64
}

func publishedCases(t *testing.T) (all []published) {
	t.Helper()
	name := regexp.MustCompile(`_(ok|refused_[a-z-]+)$`)
	for _, kind := range []string{"root", "allowlist", "walk", "order"} {
		folders, err := filepath.Glob(vectorFolder + kind + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range folders {
			text, err := os.ReadFile(filepath.Join(path, "case.json"))
			if err != nil {
				t.Fatal(err)
			}
			p := published{path: path, kind: kind, verdict: name.FindString(path)}
			if err := json.Unmarshal(text, &p); err != nil || p.verdict == "" {
				t.Fatal(path, err)
			}
			all = append(all, p)
		}
	}
	return all
}

// The host itself comes to the verdicts of the published vectors. It takes documents that are expired,
// and never heard of a floor that did not come with a list: such cases are for kpssh alone.
func TestTheHostComesToThePublishedVerdicts(t *testing.T) {
	asked := 0
	for _, p := range publishedCases(t) {
		if p.kind != "order" && p.At != nil || p.Floor > 0 {
			continue
		}
		asked++
		t.Run(strings.TrimPrefix(p.path, vectorFolder), func(t *testing.T) {
			verdict := "_ok"
			if err := p.judge(t); err != nil {
				verdict = "_refused_" + string(signing.ReasonOf(err))
				if verdict != p.verdict {
					t.Log(err)
				}
			}
			if verdict != p.verdict {
				t.Errorf("the host comes to %s", verdict)
			}
		})
	}
	if asked < 200 {
		t.Errorf("only %d cases were asked", asked)
	}
}

func (p *published) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.path, name))
	if os.IsNotExist(err) {
		data, err = os.ReadFile(vectorFolder + "given/" + name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// documents are what reaches the host before an order, oldest first.
func (p *published) documents(t *testing.T) (names []string) {
	t.Helper()
	pattern := "root.*.json"
	if p.kind == "walk" {
		pattern = "[0-9][0-9].*.json"
	}
	files, err := filepath.Glob(filepath.Join(p.path, pattern))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	if len(names) == 0 {
		names = []string{"root.1.json"}
	}
	if p.kind == "allowlist" || p.kind == "order" {
		names = append(names, "allowlist.json")
	}
	return names
}

func (p *published) judge(t *testing.T) error {
	now := issued.AddDate(1, 0, 0)
	if p.At != nil {
		now = *p.At
	}
	cfg := Config{
		State: filepath.Join(tempDir(t), "state"), Build: Build{Version: "v1.0.0"}, Log: io.Discard,
		Now: func() time.Time { return now }, BootID: "boot-1", Posture: func() Posture { return Posture{} },
	}
	if err := os.Mkdir(cfg.State, 0o700); err != nil {
		t.Fatal(err)
	}
	if p.HostID != "" {
		if err := os.WriteFile(filepath.Join(cfg.State, hostFile), []byte(`{"hostID":"`+p.HostID+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := p.documents(t)
	if err := MakeIdentity(cfg.State, p.read(t, names[0]), false); err != nil {
		return err
	}
	h, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := &session{host: h, out: io.Discard, challenge: p.Challenge, answer: signing.Receipt{HostID: h.id, Challenge: p.Challenge}}
	if s.trust, err = loadTrust(h.dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range names[1:] {
		roll := s.trust.rollRoot
		if strings.Contains(name, "allowlist") {
			roll = s.trust.rollAllowlist
		}
		if s.trust, err = roll(h.dir, p.read(t, name)); err != nil {
			return err
		}
	}
	if p.kind != "order" {
		return nil
	}
	var rest bytes.Buffer
	for _, f := range []struct {
		kind wire.Type
		name string
	}{{wire.Parameters, "parameters.json"}, {wire.Script, "script"}, {wire.Secrets, "secrets.json"}} {
		if err := wire.Write(&rest, f.kind, p.read(t, f.name)); err != nil {
			t.Fatal(err)
		}
	}
	s.in = wire.NewReader(&rest)
	return s.order(context.Background(), wire.Order, p.read(t, "order.json"))
}

func TestAdmissionIsAsPublished(t *testing.T) {
	text, err := os.ReadFile(vectorFolder + "admission.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Held    signing.Claim
		Phase   signing.Phase
		Claim   string
		Fence   int64
		Verdict string
		After   signing.Claim
	}
	if err := json.Unmarshal(text, &all); err != nil || len(all) < 50 {
		t.Fatal(len(all), err)
	}
	for _, a := range all {
		after, err := admit(a.Held, &signing.Order{Phase: a.Phase, Claim: a.Claim, Fence: a.Fence})
		verdict := "ok"
		if err != nil {
			verdict = "refused " + string(signing.ReasonOf(err))
		}
		if verdict != a.Verdict || err == nil && after != a.After {
			t.Errorf("%+v: the host says %s and then %+v", a, verdict, after)
		}
	}
}
