package vectors

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const protocol = "../../docs/protocol.md"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// example is a block of the document and, before it, the vector that it shows: a file, or the payload
// of the envelope in it. Long lines are broken; the breaks are not part of it.
var example = regexp.MustCompile("(?s)<!-- test/vectors/([^ ]+)( payload)? -->\n```json\n(.*?)```\n")

func TestTheExamplesOfTheProtocolAreVectors(t *testing.T) {
	writeOnce(t)
	text := read(t, protocol)
	found := 0
	written := example.ReplaceAllStringFunc(text, func(block string) string {
		found++
		parts := example.FindStringSubmatch(block)
		want := read(t, parts[1])
		if parts[2] != "" {
			want = payloadOf(t, want)
		}
		if got := strings.ReplaceAll(parts[3], "\n", ""); got != want && !*update {
			t.Errorf("the example of %s is another: go test ./test/vectors -update", parts[1])
		}
		head, _, _ := strings.Cut(block, "```json\n")
		return head + "```json\n" + broken(want) + "\n```\n"
	})
	if found < 6 {
		t.Errorf("only %d examples were found", found)
	}
	if !*update {
		return
	}
	if err := os.WriteFile(protocol, []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
}

func payloadOf(t *testing.T, envelope string) string {
	t.Helper()
	var e struct{ Payload string }
	if err := json.Unmarshal([]byte(envelope), &e); err != nil {
		t.Fatal(err)
	}
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	return string(payload)
}

// broken breaks a long line, behind commas where there are some.
func broken(line string) string {
	const width = 120
	var lines []string
	for len(line) > width {
		at := strings.LastIndexByte(line[:width], ',') + 1
		if at == 0 {
			at = width
		}
		lines, line = append(lines, line[:at]), line[at:]
	}
	return strings.Join(append(lines, line), "\n")
}

// rows are the first cells of a table's rows below a heading.
func rows(t *testing.T, heading string) (cells [][]string) {
	t.Helper()
	_, section, found := strings.Cut(read(t, protocol), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if row, ok := strings.CutPrefix(strings.TrimSpace(line), "| "); ok {
			parts := strings.Split(strings.TrimSuffix(row, " |"), " | ")
			for i := range parts {
				parts[i] = strings.Trim(parts[i], "`")
			}
			cells = append(cells, parts)
		}
	}
	return cells
}

// constants are the values of string constants of a type, as package signing declares them.
func constants(t *testing.T, name string) (all []string) {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^\t\w+\s+` + name + `\s+= "([^"]+)"`)
	for _, found := range declared.FindAllStringSubmatch(read(t, "../../signing/documents.go"), -1) {
		all = append(all, found[1])
	}
	slices.Sort(all)
	return all
}

func TestTheProtocolNamesEveryReasonAndParameterType(t *testing.T) {
	for heading, name := range map[string]string{"14. Refusals": "Reason", "7. Parameters and secrets": "ParamType"} {
		var listed []string
		for _, row := range rows(t, heading)[1:] {
			listed = append(listed, row[0])
		}
		slices.Sort(listed)
		if want := constants(t, name); !slices.Equal(listed, want) || len(want) < 10 {
			t.Errorf("section %s lists %q, there are %q", heading, listed, want)
		}
	}
}

func TestTheProtocolHasEveryFrame(t *testing.T) {
	var listed []string
	for _, row := range rows(t, "8. Session")[1:] {
		listed = append(listed, strings.Join([]string{row[0], row[1], row[3]}, " "))
	}
	var want []string
	for kind := wire.Type(1); kind.Cap() >= 0; kind++ {
		want = append(want, fmt.Sprintf("%d %s %d", kind, kind, kind.Cap()))
	}
	if !slices.Equal(listed, want) {
		t.Errorf("the frames are\n%s\nand listed are\n%s", strings.Join(want, "\n"), strings.Join(listed, "\n"))
	}
}

// Numbers that somebody may change in the code.
func TestTheLimitsOfTheProtocolAreThoseOfTheCode(t *testing.T) {
	text := strings.Join(strings.Fields(read(t, protocol)), " ")
	for _, sentence := range []string{
		"1 to " + strconv.Itoa(signing.MaxKeys) + " different keys, and `threshold`, 1 to the number of keys and at most " + strconv.Itoa(signing.MaxSignatures),
		"an order's PAE has at most " + strconv.Itoa(signing.MaxOrderMessage) + " bytes",
		strconv.Itoa(signing.ChallengeSize) + " random bytes that live only in this session",
		"1 to " + strconv.Itoa(signing.MaxValueLength) + ", may be left out: replaces the type's own limit",
		"at most " + strconv.Itoa(signing.MaxParametersSize>>10) + " KiB and 128 names",
		"payload of more than " + strconv.Itoa(wire.MaxSession) + " bytes that one end reads in a session, and a " + strconv.Itoa(wire.MaxRoots+1) + "th root",
		fmt.Sprintf("the %d bytes `% X` (`%q`)", len(wire.Preamble), wire.Preamble, wire.Preamble),
		"first " + strconv.Itoa(wire.MaxNoise>>10) + " KiB",
		"`protocol` " + strconv.Itoa(wire.Protocol),
		"namespace `" + wire.StatementNamespace + "`",
	} {
		if !strings.Contains(text, sentence) {
			t.Errorf("it does not say: %s", sentence)
		}
	}
}
