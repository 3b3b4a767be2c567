package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

func frame(t *testing.T, kind wire.Type, payload string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := wire.Write(&b, kind, []byte(payload)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func raw(length uint32, kind wire.Type, payload string) []byte {
	b := binary.BigEndian.AppendUint32(nil, length)
	return append(append(b, byte(kind)), payload...)
}

func TestFramesComeBackAsWritten(t *testing.T) {
	var stream bytes.Buffer
	want := map[wire.Type]string{}
	for kind := wire.Hello; kind <= wire.Collect; kind++ {
		want[kind] = strings.Repeat("x", kind.Cap())
		if err := wire.Write(&stream, kind, []byte(want[kind])); err != nil {
			t.Fatal(err)
		}
	}
	r := wire.NewReader(iotest.OneByteReader(&stream))
	for kind := wire.Hello; kind <= wire.Collect; kind++ {
		got, payload, err := r.Next()
		if err != nil || got != kind || string(payload) != want[kind] {
			t.Fatalf("%s: got %s, %d bytes, %v", kind, got, len(payload), err)
		}
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v, want io.EOF", err)
	}
}

func TestBadFramesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		stream []byte
		want   error
	}{
		"a length of 4 GiB":                 {raw(0xffffffff, wire.Script, ""), wire.ErrTooLarge},
		"one byte above an order's cap":     {raw(16<<10+1, wire.Order, ""), wire.ErrTooLarge},
		"a probe with a payload":            {raw(1, wire.Probe, "x"), wire.ErrTooLarge},
		"type zero":                         {raw(0, 0, ""), wire.ErrUnknownType},
		"a type past the last":              {raw(0, wire.Collect+1, ""), wire.ErrUnknownType},
		"a stream cut within a header":      {raw(4, wire.Order, "")[:3], io.ErrUnexpectedEOF},
		"a stream cut right after a header": {raw(4, wire.Order, ""), io.ErrUnexpectedEOF},
		"a stream cut within a payload":     {raw(4, wire.Order, "abc"), io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			_, payload, err := wire.NewReader(bytes.NewReader(tc.stream)).Next()
			if !errors.Is(err, tc.want) || payload != nil {
				t.Errorf("got %d bytes, %v; want %v", len(payload), err, tc.want)
			}
		})
	}
}

func TestSessionIsBoundedInAll(t *testing.T) {
	one := frame(t, wire.Allowlist, strings.Repeat("x", wire.Allowlist.Cap()))
	endless := wire.NewReader(&repeat{data: one})
	var read int
	for {
		_, payload, err := endless.Next()
		if errors.Is(err, wire.ErrTooLarge) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if read += len(payload); read > wire.MaxSession {
			t.Fatalf("read %d bytes", read)
		}
	}
	if read != wire.MaxSession {
		t.Errorf("read %d bytes before the bound, want %d", read, wire.MaxSession)
	}
}

type repeat struct {
	data []byte
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.data[r.at:])
	r.at = (r.at + n) % len(r.data)
	return n, nil
}

func TestWriterRefusesWhatNoReaderTakes(t *testing.T) {
	if err := wire.Write(io.Discard, wire.Collect, make([]byte, 72)); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := wire.Write(io.Discard, 99, nil); !errors.Is(err, wire.ErrUnknownType) {
		t.Errorf("unknown type: %v", err)
	}
}

func TestOutputIsCutIntoFrames(t *testing.T) {
	var stream bytes.Buffer
	want := strings.Repeat("0123456789", 20<<10)
	if err := wire.WriteOutput(&stream, []byte(want)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for r := wire.NewReader(&stream); ; {
		kind, payload, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || kind != wire.Output {
			t.Fatal(kind, err)
		}
		got.Write(payload)
	}
	if got.String() != want {
		t.Errorf("%d bytes came back of %d", got.Len(), len(want))
	}
}

var errForged = errors.New("forged")

func genuine(envelope []byte) error {
	if string(envelope) != "genuine" {
		return errForged
	}
	return nil
}

func TestHelloIsFoundBehindNoise(t *testing.T) {
	hello := wire.Preamble + string(frame(t, wire.Hello, "genuine"))
	forged := wire.Preamble + string(frame(t, wire.Hello, "forged"))
	for name, noise := range map[string]string{
		"nothing":                                "",
		"a banner":                               "Welcome to host\r\n*** authorised use only ***\n",
		"a banner without a line end":            "password expires in 3 days",
		"a forged hello":                         forged,
		"ten forged hellos":                      strings.Repeat(forged, 10),
		"a forged hello longer than the rest":    wire.Preamble + string(raw(16<<10, wire.Hello, "")),
		"a forged frame above the cap":           wire.Preamble + string(raw(1<<30, wire.Hello, "")),
		"a preamble alone":                       wire.Preamble,
		"the start of a preamble":                wire.Preamble[:5],
		"two preambles that share a newline":     wire.Preamble + wire.Preamble[1:],
		"another frame first":                    wire.Preamble + string(frame(t, wire.Receipt, "genuine")),
		"64 KiB less a bit of line noise":        strings.Repeat("noise\n", 10000),
		"a preamble whose frame is another type": wire.Preamble + string(raw(7, 77, "genuine")),
	} {
		t.Run(name, func(t *testing.T) {
			next := string(frame(t, wire.Receipt, "next"))
			for how, stream := range map[string]io.Reader{
				"at once":      strings.NewReader(noise + hello + next),
				"byte by byte": iotest.OneByteReader(strings.NewReader(noise + hello + next)),
				// The peer waits for an answer after its hello: needing one more byte would hang.
				"hello last": io.MultiReader(strings.NewReader(noise+hello), &then{next: next}),
			} {
				r := wire.NewReader(stream)
				if err := r.Hello(genuine); err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				kind, payload, err := r.Next()
				if err != nil || kind != wire.Receipt || string(payload) != "next" {
					t.Errorf("%s: after the hello came %s %q, %v", how, kind, payload, err)
				}
			}
		})
	}
}

// then stands for a peer that says more only when it is asked for a frame.
type then struct {
	next string
	pos  int
}

func (s *then) Read(p []byte) (int, error) {
	pc := make([]uintptr, 16)
	for frames, more := runtime.CallersFrames(pc[:runtime.Callers(1, pc)]), true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, ".Hello") {
			return 0, errors.New("the search for the hello read past it")
		}
	}
	n := copy(p, s.next[s.pos:])
	s.pos += n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestHelloIsNotFoundWhereNoneVerifies(t *testing.T) {
	hello := wire.Preamble + string(frame(t, wire.Hello, "genuine"))
	forged := wire.Preamble + string(frame(t, wire.Hello, "forged"))
	for name, tc := range map[string]struct {
		stream io.Reader
		want   error
	}{
		"silence":                     {strings.NewReader(""), io.EOF},
		"a shell that complains":      {strings.NewReader("bash: kpssh-shim: command not found\n"), io.ErrUnexpectedEOF},
		"a hello cut short":           {strings.NewReader(hello[:len(hello)-1]), io.ErrUnexpectedEOF},
		"a forged hello":              {strings.NewReader(forged), errForged},
		"a hello past the bound":      {strings.NewReader(strings.Repeat("x", wire.MaxNoise+1) + hello), io.ErrUnexpectedEOF},
		"endless noise":               {&repeat{data: []byte("y\n")}, wire.ErrTooLarge},
		"endless forged hellos":       {&repeat{data: []byte(forged)}, errForged},
		"endless preambles":           {&repeat{data: []byte(wire.Preamble)}, wire.ErrTooLarge},
		"64 forgeries, then the real": {strings.NewReader(strings.Repeat(forged, 64) + hello), errForged},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			err := wire.NewReader(tc.stream).Hello(func(e []byte) error { calls++; return genuine(e) })
			var none *wire.NoHelloError
			if !errors.As(err, &none) || !errors.Is(err, tc.want) {
				t.Errorf("got %v, want a NoHelloError of %v", err, tc.want)
			}
			if calls > 64 {
				t.Errorf("checked %d signatures", calls)
			}
		})
	}
}

// FuzzFrame reads a stream as frames, which must be the bytes that they were read from, and as one that
// has a hello somewhere: what is found is in the stream, behind a preamble, and reading goes on behind it.
func FuzzFrame(f *testing.F) {
	hello := wire.Preamble + string(raw(7, wire.Hello, "genuine"))
	forged := wire.Preamble + string(raw(6, wire.Hello, "forged"))
	f.Add([]byte(wire.Preamble))
	f.Add(raw(4, wire.Order, "abcd"))
	f.Add(raw(0xffffffff, wire.Output, ""))
	f.Add([]byte("motd\n" + hello + string(raw(4, wire.Receipt, "next"))))
	f.Add([]byte(forged + wire.Preamble[:8] + hello + string(raw(0, wire.Probe, ""))))
	f.Add([]byte(wire.Preamble + string(raw(16<<10, wire.Hello, "")) + hello))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := wire.NewReader(bytes.NewReader(stream))
		var again bytes.Buffer
		for {
			kind, payload, err := r.Next()
			if err != nil {
				break
			}
			if err := wire.Write(&again, kind, payload); err != nil {
				t.Fatalf("a frame that was read cannot be written: %v", err)
			}
		}
		if !bytes.HasPrefix(stream, again.Bytes()) {
			t.Error("frames read differ from the bytes they were read from")
		}
		r = wire.NewReader(bytes.NewReader(stream))
		at := bytes.Index(stream, []byte(hello))
		if err := r.Hello(genuine); (err == nil) != (at >= 0) && len(stream) < wire.MaxNoise && bytes.Count(stream, []byte(wire.Preamble[1:])) < 64 {
			t.Fatalf("the hello stands at %d, and the search says %v", at, err)
		} else if err != nil {
			return
		}
		if kind, payload, err := r.Next(); err == nil && !bytes.Contains(stream[at+len(hello):], payload) {
			t.Errorf("behind the hello came %s %q", kind, payload)
		}
	})
}

// FuzzRecord reads lines of an audit trail as they come, and ones that are made of what the fuzzer says
// with the sum that belongs to them: what is read is what would be written.
func FuzzRecord(f *testing.F) {
	good, err := wire.Record{Source: wire.SourceHost, Seq: 1, Mode: wire.ModeVerified, HostID: "a", Order: []byte(`{"a":"<&>"}`)}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimSuffix(good, []byte("\n")))
	f.Add([]byte(wire.RecordPrefix + `"sum":""}`))
	f.Add([]byte(`{"audit":"v1","source":"host","seq":1,"mode":"raw","order":{"a" : "\u2028"},"receipt":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, err := wire.DecodeRecord(line); err == nil {
			again, err := r.Encode()
			if err != nil || string(again) != string(line)+"\n" {
				t.Fatalf("read %q, written as %q, %v", line, again, err)
			}
		}
		var r wire.Record
		if json.Unmarshal(line, &r) != nil {
			return
		}
		made, err := r.Encode()
		if err != nil {
			return
		}
		if _, err := wire.DecodeRecord(bytes.TrimSuffix(made, []byte("\n"))); err != nil {
			t.Fatalf("%q was written and is not read: %v", made, err)
		}
	})
}
