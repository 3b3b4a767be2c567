package wire_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

func sample() wire.Record {
	return wire.Record{
		Audit: "v1", Source: wire.SourceController, Stream: "S", Seq: 12, Time: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
		Mode: wire.ModeVerified, Host: "host-a", HostID: "id", NodeClaim: "pool-x", Claim: "uid", Profile: "p", Version: "1", Phase: "join",
		Script: "sha256:00", Parameters: "sha256:11", Outcome: "ok", OrderDigest: "sha256:22", DispatchKey: "sha256:33",
		Order: json.RawMessage(`{"payload":"<&>"}`), Receipt: json.RawMessage(`{"payload":"b"}`),
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	line, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(line, []byte(wire.RecordPrefix)) || bytes.Count(line, []byte("\n")) != 1 || !bytes.HasSuffix(line, []byte("\n")) {
		t.Errorf("line %q", line)
	}
	got, err := wire.DecodeRecord(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		t.Fatal(err)
	}
	want := sample()
	want.Sum = got.Sum
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("(-written +read)\n%s", diff)
	}
}

func TestADamagedRecordIsNone(t *testing.T) {
	line, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	refused := func(what string, damaged []byte) {
		t.Helper()
		if _, err := wire.DecodeRecord(damaged); err == nil {
			t.Errorf("%s is taken: %s", what, damaged)
		}
	}
	for i := range line {
		for bit := range 8 {
			flipped := bytes.Clone(line)
			flipped[i] ^= 1 << bit
			refused("a flipped bit", flipped)
		}
		refused("a part", line[:i])
		refused("a line without a byte", append(bytes.Clone(line[:i]), line[i+1:]...))
	}
	text := string(line)
	refused("a further field", []byte(strings.Replace(text, `"seq":12,`, `"seq":12,"x":1,`, 1)))
	refused("a repeated field", []byte(strings.Replace(text, `"seq":12,`, `"seq":11,"seq":12,`, 1)))
	refused("white space", []byte(strings.Replace(text, `"seq":12,`, `"seq": 12,`, 1)))
	refused("another case", []byte(strings.Replace(text, `"seq"`, `"SEQ"`, 1)))
	refused("data after it", append(bytes.Clone(line), " {}"...))
}

func TestARecordIsBounded(t *testing.T) {
	r := sample()
	r.Order = json.RawMessage(`"` + strings.Repeat("x", wire.MaxRecord) + `"`)
	if _, err := r.Encode(); err == nil {
		t.Error("it is written")
	}
	if _, err := wire.DecodeRecord([]byte(wire.RecordPrefix + strings.Repeat(" ", wire.MaxRecord))); err == nil {
		t.Error("it is read")
	}
}
