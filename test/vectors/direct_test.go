package vectors

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Package signing alone, without kpssh: what needs a host's memory (walk, floor) is not asked of it.
func TestPackageSigningComesToTheVerdicts(t *testing.T) {
	asked := 0
	for _, c := range cases(t) {
		if c.kind == "walk" || c.Floor > 0 || strings.HasSuffix(c.verdict, "receipt-mismatch") {
			continue
		}
		asked++
		t.Run(filepath.ToSlash(c.path), func(t *testing.T) {
			err := c.judge(t)
			verdict := "ok"
			if err != nil {
				verdict = "refused " + string(signing.ReasonOf(err))
			}
			if verdict != c.verdict {
				t.Errorf("it says %s (%v), the name says %s", verdict, err, c.verdict)
			}
		})
	}
	if asked < 200 {
		t.Errorf("only %d cases were asked", asked)
	}
}

func (c *vectorCase) read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(c.file(name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func (c *vectorCase) judge(t *testing.T) error {
	switch c.kind {
	case "hello", "receipt":
		return c.judgeAnswer(t)
	}
	var root *signing.Root
	for _, path := range c.roots(t) {
		envelope, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if root == nil {
			root, err = signing.OpenFirstRoot(envelope)
		} else {
			root, err = signing.NextRoot(root, envelope)
		}
		if err != nil {
			return err
		}
	}
	if c.kind == "root" {
		return c.expiry(0, root.Expires)
	}
	envelope := c.read(t, "allowlist.json")
	list, err := signing.OpenAllowlist(envelope, root)
	if err != nil {
		return err
	}
	if c.kind == "allowlist" {
		return c.expiry(0, root.Expires, list.Expires)
	}
	return c.judgeOrder(t, root, list, envelope)
}

func (c *vectorCase) judgeOrder(t *testing.T, root *signing.Root, list *signing.Allowlist, listEnvelope []byte) error {
	order, err := signing.OpenOrder(c.read(t, "order.json"), root)
	if err != nil {
		return err
	}
	digest, err := signing.PayloadDigest(listEnvelope)
	if err != nil {
		return err
	}
	frame, secretsFrame := c.read(t, "parameters.json"), c.read(t, "secrets.json")
	switch {
	case order.HostID != c.HostID:
		return &signing.Refusal{Reason: signing.ReasonWrongHost}
	case !bytes.Equal(order.Challenge, c.Challenge):
		return &signing.Refusal{Reason: signing.ReasonStaleChallenge}
	case order.Allowlist != digest:
		return &signing.Refusal{Reason: signing.ReasonRollback}
	}
	script, err := list.Find(order.Profile, order.Version, order.Phase, order.Script)
	if err != nil {
		return err
	}
	if root.Issued.After(*c.At) || list.Issued.After(*c.At) {
		later := slices.MaxFunc([]time.Time{root.Issued, list.Issued}, time.Time.Compare)
		c.At = &later
	}
	if err := c.expiry(time.Duration(script.GraceSeconds)*time.Second, root.Expires, list.Expires); err != nil {
		return err
	}
	if signing.Digest(frame) != order.Parameters {
		return &signing.Refusal{Reason: signing.ReasonParam}
	}
	params, err := signing.DecodeParameters(frame)
	if err != nil {
		return err
	}
	if err := script.Check(params, slices.Sorted(maps.Keys(order.Secrets))); err != nil {
		return err
	}
	if signing.Digest(c.read(t, "script")) != order.Script {
		return &signing.Refusal{Reason: signing.ReasonNotAllowed}
	}
	secrets, err := signing.DecodeParameters(secretsFrame)
	if err != nil {
		return err
	}
	for name := range secrets {
		if signing.Commitment(order.Challenge, name, secrets[name]) != order.Secrets[name] {
			return &signing.Refusal{Reason: signing.ReasonSecretMismatch}
		}
	}
	if len(secrets) != len(order.Secrets) {
		return &signing.Refusal{Reason: signing.ReasonSecretMismatch}
	}
	return script.CheckSecrets(secrets)
}

func (c *vectorCase) expiry(grace time.Duration, expires ...time.Time) error {
	for _, e := range expires {
		if c.At == nil {
			continue
		}
		if err := signing.CheckExpiry(e.Add(grace), *c.At); err != nil {
			return err
		}
	}
	return nil
}

func (c *vectorCase) judgeAnswer(t *testing.T) error {
	key, err := signing.ParseKey(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	envelope := c.read(t, c.kind+".json")
	said := ""
	if c.kind == "receipt" {
		receipt, err := signing.OpenReceipt(envelope, key)
		if err != nil {
			return err
		}
		said = receipt.HostID
	} else {
		hello, err := signing.OpenHello(envelope, key)
		if err != nil {
			return err
		}
		if said = hello.HostID; said == c.HostID && hello.Protocol != 1 {
			return &signing.Refusal{Reason: signing.ReasonUnsupportedProto}
		}
	}
	if said != c.HostID {
		return &signing.Refusal{Reason: signing.ReasonWrongHost}
	}
	return nil
}
