package signing

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// Where two JSON readers could differ about one text, ours refuses it: every row is signed with
// the right key under the right type. encoding/json alone accepts most of them.
func TestPayloadsThatAreNotCanonical(t *testing.T) {
	p := newPool(t)
	good := string(payloadOf(t, sign(t, p.order, p.dispatch)))
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the payload", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	each(t, map[string]string{
		"nothing":                           "",
		"null":                              "null",
		"true":                              "true",
		"a number":                          "0",
		"a string":                          `"order"`,
		"an array":                          "[" + good + "]",
		"an empty object":                   "{}",
		"garbage":                           "\x00\x01\x02",
		"cut short":                         good[:len(good)-1],
		"a line break after it":             good + "\n",
		"a space before it":                 " " + good,
		"a space within":                    replace(`,"fence"`, `, "fence"`),
		"a byte order mark":                 "\ufeff" + good,
		"a second object after it":          good + "{}",
		"a comma at the end":                replace("}", ",}"),
		"a comment":                         replace("{", "{/**/"),
		"an unknown field":                  replace("{", `{"x":1,`),
		"an unknown field that is null":     replace("{", `{"x":null,`),
		"a field twice, the same":           replace(`"phase":"join",`, `"phase":"join","phase":"join",`),
		"a field twice, the good one last":  replace(`"phase":"join",`, `"phase":"leave","phase":"join",`),
		"a field twice, the good one first": replace(`"phase":"join",`, `"phase":"join","phase":"leave",`),
		"a field in upper case":             replace(`"phase"`, `"PHASE"`),
		"a field in upper case beside it":   replace(`"phase":"join"`, `"phase":"join","PHASE":"leave"`),
		"a field with the letter U+017F":    replace(`"phase"`, `"pha`+"\u017f"+`e"`),
		"a field with U+017F beside it":     replace(`"phase":"join"`, `"phase":"join","pha`+"\u017f"+`e":"leave"`),
		"a field with the Kelvin sign":      replace(`"challenge"`, `"`+"\u212a"+`"`),
		"a field with an escape":            replace(`"phase"`, `"ph\u0061se"`),
		"a value with an escape":            replace(`"join"`, `"jo\u0069n"`),
		"a value with an escaped slash":     replace(`"join"`, `"jo\/in"`),
		"a value with invalid UTF-8":        replace(`"join"`, "\"jo\xffin\""),
		"a value with a lone surrogate":     replace(`"join"`, `"\ud800"`),
		"a value with NUL":                  replace(`"join"`, `"join\u0000"`),
		"a raw control character":           replace(`"join"`, "\"join\x01\""),
		"a field that is null":              replace(`"phase":"join"`, `"phase":null`),
		"a field that is missing":           replace(`"phase":"join",`, ``),
		"a field of another type":           replace(`"phase":"join"`, `"phase":1`),
		"a map that is null":                replace(good[strings.Index(good, `"secrets":`):strings.Index(good, `,"timeout`)], `"secrets":null`),
		"a map with a key twice":            replace(`"secrets":{`, `"secrets":{"KPSSH_BOOTSTRAP_TOKEN":"`+Digest(nil)+`",`),
		"a map out of order":                replace(`"secrets":{`, `"secrets":{"KPSSH_SECRET_Z":"`+Digest(nil)+`",`),
		"a list instead of a map":           replace(good[strings.Index(good, `"secrets":`):strings.Index(good, `,"timeout`)], `"secrets":[]`),
		"fields in another order":           "{" + `"timeoutSeconds":600,` + strings.Replace(good[1:], `,"timeoutSeconds":600`, "", 1),
		"a number with a fraction":          replace(`"fence":7`, `"fence":7.0`),
		"a number with an exponent":         replace(`"fence":7`, `"fence":7e0`),
		"a number with a leading zero":      replace(`"fence":7`, `"fence":07`),
		"a number that is minus zero":       replace(`"fence":7`, `"fence":-0`),
		"a number beyond 64 bits":           replace(`"fence":7`, `"fence":9223372036854775808`),
		"a number in a string":              replace(`"fence":7`, `"fence":"7"`),
		"base64 without padding":            replace(`"challenge":"Y2N`, `"challenge":"`),
		"base64 in the URL alphabet":        replace(`"challenge":"Y2N`, `"challenge":"__-`),
		"base64 with a line break":          replace(`"challenge":"Y2N`, `"challenge":"\nY2N`),
		"bytes as a list of numbers":        replace(good[strings.Index(good, `"challenge":`):strings.Index(good, `,"allowlist`)], `"challenge":[1,2,3]`),
		"another document's payload":        string(payloadOf(t, sign(t, p.receipt, p.host))),
	}, func(t *testing.T, payload string) {
		if payload == good {
			t.Fatal("the row does not change the payload")
		}
		_, err := OpenOrder(signPayload(t, TypeOrder, []byte(payload), p.dispatch), p.rootDoc)
		wantReason(t, err, ReasonMalformed)
	})
	if _, err := OpenOrder(signPayload(t, TypeOrder, []byte(good), p.dispatch), p.rootDoc); err != nil {
		t.Errorf("the payload itself: %v", err)
	}
}

// Times have one spelling, and lists are never null.
func TestRootPayloadsThatAreNotCanonical(t *testing.T) {
	p := newPool(t)
	good := string(payloadOf(t, sign(t, p.rootDoc, p.root)))
	keys := good[strings.Index(good, `"dispatch":`) : len(good)-1]
	each(t, map[string]string{
		"a fraction of a second": strings.Replace(good, ":00Z", ":00.5Z", 1),
		"zeros of a second":      strings.Replace(good, ":00Z", ":00.000Z", 1),
		"an offset of zero":      strings.Replace(good, ":00Z", ":00+00:00", 1),
		"another zone":           strings.Replace(good, "T12:00:00Z", "T13:00:00+01:00", 1),
		"a small t":              strings.Replace(good, "T12:00:00Z", "t12:00:00Z", 1),
		"a leap second":          strings.Replace(good, "T12:00:00Z", "T23:59:60Z", 1),
		"the 30th of February":   strings.Replace(good, "2026-05-01", "2026-02-30", 1),
		"a time that is null":    strings.Replace(good, `"2026-05-01T12:00:00Z"`, "null", 1),
		"a time as a number":     strings.Replace(good, `"2026-05-01T12:00:00Z"`, "1777636800", 1),
		"keys that are null":     strings.Replace(good, keys, `"dispatch":{"keys":null,"threshold":1}`, 1),
		"a role that is null":    strings.Replace(good, keys, `"dispatch":null`, 1),
		"a key that is null":     strings.Replace(good, keys, `"dispatch":{"keys":[null],"threshold":1}`, 1),
		"a role that is missing": strings.Replace(good, ","+keys, "", 1),
		"a role of another name": strings.Replace(good, keys, keys+`,"admin":{"keys":[],"threshold":0}`, 1),
	}, func(t *testing.T, payload string) {
		if payload == good {
			t.Fatal("the row does not change the payload")
		}
		_, err := OpenFirstRoot(signPayload(t, TypeRoot, []byte(payload), p.root))
		wantReason(t, err, ReasonMalformed)
	})
}

// refuses signs the document as it is, and also its bytes past the signer's check.
func refuses[T Document](t *testing.T, doc *T, signer Signer, open func([]byte) error) {
	t.Helper()
	_, err := Sign(context.Background(), doc, signer)
	if r := ReasonOf(err); r != ReasonMalformed && r != ReasonTooLarge {
		t.Errorf("Sign says %v", err)
	}
	d := any(doc).(document)
	d.normalise()
	payload, err := encode(d)
	if err != nil {
		t.Fatal(err)
	}
	err = open(signPayload(t, d.payloadType(), payload, signer))
	if r := ReasonOf(err); r != ReasonMalformed && r != ReasonTooLarge {
		t.Errorf("Open says %v", err)
	}
}

func TestMalformedOrders(t *testing.T) {
	each(t, map[string]func(o *Order){
		"no host":                               func(o *Order) { o.HostID = "" },
		"a host with a line break":              func(o *Order) { o.HostID = "a\nb" },
		"no challenge":                          func(o *Order) { o.Challenge = nil },
		"a short challenge":                     func(o *Order) { o.Challenge = o.Challenge[:31] },
		"a long challenge":                      func(o *Order) { o.Challenge = append(o.Challenge, 0) },
		"no allowlist":                          func(o *Order) { o.Allowlist = "" },
		"an allowlist that is no digest":        func(o *Order) { o.Allowlist = "sha256:xyz" },
		"a digest in upper case":                func(o *Order) { o.Script = strings.ToUpper(o.Script) },
		"a digest of another function":          func(o *Order) { o.Script = "sha512:" + o.Script[7:] },
		"no profile":                            func(o *Order) { o.Profile = "" },
		"a profile that is a path":              func(o *Order) { o.Profile = "../etc" },
		"a profile in upper case":               func(o *Order) { o.Profile = "Join" },
		"no version":                            func(o *Order) { o.Version = "" },
		"a version that is a path":              func(o *Order) { o.Version = "1/2" },
		"a version that is an option":           func(o *Order) { o.Version = "-rf" },
		"no phase":                              func(o *Order) { o.Phase = "" },
		"an unknown phase":                      func(o *Order) { o.Phase = "reboot" },
		"a phase in upper case":                 func(o *Order) { o.Phase = "Join" },
		"a claim with a space":                  func(o *Order) { o.Claim = "a b" },
		"a claim without end":                   func(o *Order) { o.Claim = strings.Repeat("a", 200) },
		"a fence below zero":                    func(o *Order) { o.Fence = -1 },
		"no digest of parameters":               func(o *Order) { o.Parameters = "" },
		"no time":                               func(o *Order) { o.TimeoutSeconds = 0 },
		"less than no time":                     func(o *Order) { o.TimeoutSeconds = -1 },
		"more than a day":                       func(o *Order) { o.TimeoutSeconds = maxTimeout + 1 },
		"a secret of another name":              func(o *Order) { o.Secrets = map[string]string{"PATH": Digest(nil)} },
		"a secret in lower case":                func(o *Order) { o.Secrets = map[string]string{"KPSSH_a": Digest(nil)} },
		"a secret without a name":               func(o *Order) { o.Secrets = map[string]string{"KPSSH_": Digest(nil)} },
		"a secret's value for its commitment":   func(o *Order) { o.Secrets = map[string]string{"KPSSH_A": "hunter2"} },
		"more secrets than an order may have":   func(o *Order) { o.Secrets = manySecrets(maxSecrets + 1) },
		"more bytes than a key service signs":   func(o *Order) { o.Secrets = manySecrets(maxSecrets) },
		"a profile name without end":            func(o *Order) { o.Profile = strings.Repeat("a", 65) },
		"a profile name with a dot at its end":  func(o *Order) { o.Profile = "a." },
		"a profile name with a bidi character":  func(o *Order) { o.Profile = "a\u202eb" },
		"a profile name that only looks alike":  func(o *Order) { o.Profile = "j\u043ein" },
		"a host that only looks like a host id": func(o *Order) { o.HostID = "0a1b2c3d\u0000" },
	}, func(t *testing.T, spoil func(*Order)) {
		p := newPool(t)
		spoil(p.order)
		refuses(t, p.order, p.dispatch, func(e []byte) error { _, err := OpenOrder(e, p.rootDoc); return err })
	})
}

func manySecrets(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("KPSSH_SECRET_%d_%s", i, strings.Repeat("X", 40))] = Digest(nil)
	}
	return m
}

func TestMalformedHellos(t *testing.T) {
	each(t, map[string]func(h *Hello){
		"no protocol":                      func(h *Hello) { h.Protocol = 0 },
		"no shim version":                  func(h *Hello) { h.ShimVersion = "" },
		"a shim version with an escape":    func(h *Hello) { h.ShimVersion = "1\x1b[2J" },
		"a shim digest that is none":       func(h *Hello) { h.ShimDigest = "abc" },
		"no host":                          func(h *Hello) { h.HostID = "" },
		"a boot id with a space":           func(h *Hello) { h.BootID = "a b" },
		"no challenge":                     func(h *Hello) { h.Challenge = nil },
		"a root version without a digest":  func(h *Hello) { h.Root.Digest = "" },
		"a root digest without a version":  func(h *Hello) { h.Root.Version = 0 },
		"an allowlist version below zero":  func(h *Hello) { h.Allowlist = DocumentRef{-1, Digest(nil)} },
		"a claim that is no uid":           func(h *Hello) { h.Claim.UID = "a,b" },
		"a fence below zero":               func(h *Hello) { h.Claim.Fence = -1 },
		"a kept script that is no digest":  func(h *Hello) { h.Scripts = []string{"rm -rf"} },
		"more scripts than are kept":       func(h *Hello) { h.Scripts = manyDigests(maxListed + 1) },
		"a finding that is a sentence":     func(h *Hello) { h.Findings = []string{"all is well"} },
		"an empty finding":                 func(h *Hello) { h.Findings = []string{""} },
		"a last run without an order":      func(h *Hello) { h.LastRun.Order = "" },
		"a last run in an unknown state":   func(h *Hello) { h.LastRun.State = "paused" },
		"a last run with unknown outcome":  func(h *Hello) { h.LastRun.Outcome = "fine" },
		"a last run in an unknown phase":   func(h *Hello) { h.LastRun.Phase = "x" },
		"a last run with a claim in words": func(h *Hello) { h.LastRun.Claim = "x y" },
		"a last run on a boot in words":    func(h *Hello) { h.LastRun.BootID = "x y" },
		"a last run without end":           func(h *Hello) { h.LastRun.Deadline = maxTimeout + 1 },
	}, func(t *testing.T, spoil func(*Hello)) {
		p := newPool(t)
		spoil(p.hello)
		refuses(t, p.hello, p.host, func(e []byte) error { _, err := OpenHello(e, p.host.Public()); return err })
	})
}

func manyDigests(n int) []string {
	var all []string
	for i := range n {
		all = append(all, Digest([]byte{byte(i)}))
	}
	return all
}

func TestMalformedReceipts(t *testing.T) {
	each(t, map[string]func(r *Receipt){
		"no outcome":                         func(r *Receipt) { r.Outcome = "" },
		"an unknown outcome":                 func(r *Receipt) { r.Outcome = "fine" },
		"a refusal without a reason":         func(r *Receipt) { r.Outcome = OutcomeRefused },
		"a reason without a refusal":         func(r *Receipt) { r.Reason = ReasonBusy },
		"a reason in words":                  func(r *Receipt) { r.Outcome, r.Reason = OutcomeRefused, "try again" },
		"no host":                            func(r *Receipt) { r.HostID = "" },
		"a run that no order asked for":      func(r *Receipt) { r.Order = "" },
		"a run without a challenge":          func(r *Receipt) { r.Challenge = nil },
		"a run of no profile":                func(r *Receipt) { r.Profile = "" },
		"a run of no script":                 func(r *Receipt) { r.Script = "" },
		"a run without parameters":           func(r *Receipt) { r.Parameters = "" },
		"a claim in words":                   func(r *Receipt) { r.Claim = "x y" },
		"a fence below zero":                 func(r *Receipt) { r.Fence = -1 },
		"a running order that is no digest":  func(r *Receipt) { r.Running = "x" },
		"a signal in words":                  func(r *Receipt) { r.Signal = "killed hard" },
		"more output kept than there was":    func(r *Receipt) { r.Output.Kept = r.Output.Bytes + 1 },
		"output cut and not said":            func(r *Receipt) { r.Output.Kept-- },
		"output said to be cut and not":      func(r *Receipt) { r.Output.Truncated = true },
		"less than no output":                func(r *Receipt) { r.Output = OutputRef{Bytes: -1, Kept: -1} },
		"output of no digest":                func(r *Receipt) { r.Output.Digest = "x" },
		"a run that ended before it started": func(r *Receipt) { r.DurationMillis = -1 },
		"a boot in words":                    func(r *Receipt) { r.BootID = "x y" },
	}, func(t *testing.T, spoil func(*Receipt)) {
		p := newPool(t)
		spoil(p.receipt)
		refuses(t, p.receipt, p.host, func(e []byte) error { _, err := OpenReceipt(e, p.host.Public()); return err })
	})
}

func TestARefusalNeedsToKnowLittle(t *testing.T) {
	p := newPool(t)
	for _, r := range []*Receipt{
		{HostID: "h", Outcome: OutcomeRefused, Reason: ReasonMalformed},
		{HostID: "h", Outcome: OutcomeRefused, Reason: ReasonBusy, Running: Digest(nil), Challenge: p.order.Challenge, Order: Digest(nil)},
	} {
		if _, err := OpenReceipt(sign(t, r, p.host), p.host.Public()); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	hello := &Hello{Protocol: 1, ShimVersion: "1", HostID: "h", Challenge: p.order.Challenge}
	if _, err := OpenHello(sign(t, hello, p.host), p.host.Public()); err != nil {
		t.Errorf("a hello of a fresh host: %v", err)
	}
}

func TestMalformedAllowlists(t *testing.T) {
	each(t, map[string]func(a *Allowlist){
		"version 0":                               func(a *Allowlist) { a.Version = 0 },
		"never expires":                           func(a *Allowlist) { a.Expires = time.Time{} },
		"a minShim that is no version":            func(a *Allowlist) { a.MinShim = "new one" },
		"a script without a digest":               func(a *Allowlist) { a.Scripts[0].Digest = "" },
		"a script in no phase":                    func(a *Allowlist) { a.Scripts[0].Phase = "" },
		"a script of no profile":                  func(a *Allowlist) { a.Scripts[0].Profile = "" },
		"a script of no version":                  func(a *Allowlist) { a.Scripts[0].Version = "" },
		"a script twice":                          func(a *Allowlist) { a.Scripts = append(a.Scripts, a.Scripts[0]) },
		"grace for a join":                        func(a *Allowlist) { a.Scripts[0].GraceSeconds = 60 },
		"grace below zero":                        func(a *Allowlist) { a.Scripts[0].GraceSeconds = -1 },
		"grace without end":                       func(a *Allowlist) { a.Scripts[0].Phase, a.Scripts[0].GraceSeconds = PhaseLeave, maxGrace+1 },
		"more scripts than a list may have":       func(a *Allowlist) { a.Scripts = manyScripts(maxScripts + 1) },
		"a parameter twice":                       param(func(p *Parameter) { p.Name = "KPSSH_CLUSTER_ENDPOINT" }),
		"a parameter without a name":              param(func(p *Parameter) { p.Name = "" }),
		"a parameter named PATH":                  param(func(p *Parameter) { p.Name = "PATH" }),
		"a parameter in lower case":               param(func(p *Parameter) { p.Name = "KPSSH_a" }),
		"a parameter that is a prefix":            param(func(p *Parameter) { p.Name = "KPSSH_" }),
		"a parameter with a line break":           param(func(p *Parameter) { p.Name = "KPSSH_A\n" }),
		"a parameter with an equals sign":         param(func(p *Parameter) { p.Name = "KPSSH_A=B" }),
		"an unknown type":                         param(func(p *Parameter) { p.Type = "json" }),
		"no type":                                 param(func(p *Parameter) { p.Type = "" }),
		"a type in upper case":                    param(func(p *Parameter) { p.Type = "String" }),
		"a length below zero":                     param(func(p *Parameter) { p.MaxLength = -1 }),
		"a length beyond the environment":         param(func(p *Parameter) { p.MaxLength = MaxValueLength + 1 }),
		"a pattern that does not compile":         param(func(p *Parameter) { p.Pattern = "(" }),
		"a pattern that leaves its group":         param(func(p *Parameter) { p.Pattern = "a)|(.*" }),
		"a pattern that quotes its end":           param(func(p *Parameter) { p.Pattern = `\Qabc` }),
		"a pattern that looks back":               param(func(p *Parameter) { p.Pattern = `(?<=a)b` }),
		"a pattern that explodes":                 param(func(p *Parameter) { p.Pattern = `((a{100}){100}){100}` }),
		"a pattern without end":                   param(func(p *Parameter) { p.Pattern = strings.Repeat("a", maxPattern+1) }),
		"a pattern with a bidi character":         param(func(p *Parameter) { p.Pattern = "a\u202eb" }),
		"an enum value that does not fit":         param(func(p *Parameter) { p.Type, p.Enum = ParamIP, []string{"10.0.0.1", "x"} }),
		"an enum value twice":                     param(func(p *Parameter) { p.Enum = []string{"a", "a"} }),
		"an enum value past the pattern":          param(func(p *Parameter) { p.Pattern, p.Enum = "a|b", []string{"c"} }),
		"an enum value with a control character":  param(func(p *Parameter) { p.Enum = []string{"a\nb"} }),
		"more values than an enum may have":       param(func(p *Parameter) { p.Enum = manyDigests(maxListed + 1) }),
		"a pin that does not fit":                 param(func(p *Parameter) { p.Type, p.Pins = ParamEndpoint, []string{"https://Example.com"} }),
		"a pin past the enum":                     param(func(p *Parameter) { p.Enum, p.Pins = []string{"a"}, []string{"b"} }),
		"a pin twice":                             param(func(p *Parameter) { p.Pins = []string{"a", "a"} }),
		"a pin of a bundle that is no digest":     param(func(p *Parameter) { p.Type, p.Pins = ParamCABundle, []string{"abc"} }),
		"a secret with a pin":                     param(func(p *Parameter) { p.Secret, p.Pins = true, []string{"hunter2"} }),
		"a secret with an enum":                   param(func(p *Parameter) { p.Secret, p.Enum = true, []string{"hunter2"} }),
		"more parameters than a script may have":  func(a *Allowlist) { a.Scripts[0].Parameters = manyParameters(maxParameters + 1) },
		"a parameter whose name has no end":       param(func(p *Parameter) { p.Name = "KPSSH_" + strings.Repeat("A", 200) }),
		"a version of a profile that is a letter": func(a *Allowlist) { a.Scripts[0].Version = "+" },
	}, func(t *testing.T, spoil func(*Allowlist)) {
		p := newPool(t)
		spoil(p.allowlist)
		refuses(t, p.allowlist, p.author, func(e []byte) error { _, err := OpenAllowlist(e, p.rootDoc); return err })
	})
}

// param adds one more parameter, spoiled.
func param(spoil func(*Parameter)) func(*Allowlist) {
	return func(a *Allowlist) {
		p := Parameter{Name: "KPSSH_VAR_SPOILED", Type: ParamString}
		spoil(&p)
		a.Scripts[0].Parameters = append(a.Scripts[0].Parameters, p)
	}
}

func manyScripts(n int) []AllowedScript {
	var all []AllowedScript
	for i := range n {
		all = append(all, AllowedScript{Profile: "p", Version: "1", Phase: PhaseJoin, Digest: Digest(fmt.Append(nil, i))})
	}
	return all
}

func manyParameters(n int) []Parameter {
	var all []Parameter
	for i := range n {
		all = append(all, Parameter{Name: fmt.Sprint("KPSSH_VAR_", i), Type: ParamString})
	}
	return all
}

func TestParametersFrame(t *testing.T) {
	good := map[string]string{"KPSSH_B": "<a&b>", "KPSSH_A": "ü", "KPSSH_C": ""}
	frame, err := EncodeParameters(good)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"KPSSH_A":"ü","KPSSH_B":"<a&b>","KPSSH_C":""}`; string(frame) != want {
		t.Errorf("encoded as %s, want %s", frame, want)
	}
	got, err := DecodeParameters(frame)
	if err != nil || !maps.Equal(got, good) {
		t.Errorf("decoded as %v, %v", got, err)
	}
	if empty, err := EncodeParameters(nil); err != nil || string(empty) != "{}" {
		t.Errorf("nothing is encoded as %s, %v", empty, err)
	}
	each(t, map[string]string{
		"nothing":                     "",
		"null":                        "null",
		"a list":                      "[]",
		"white space":                 "{ }",
		"a line break after it":       "{}\n",
		"a name twice":                `{"KPSSH_A":"1","KPSSH_A":"1"}`,
		"names out of order":          `{"KPSSH_B":"1","KPSSH_A":"1"}`,
		"a number":                    `{"KPSSH_A":1}`,
		"a value that is null":        `{"KPSSH_A":null}`,
		"an escape that is no need":   `{"KPSSH_A":"\u003c"}`,
		"a name of another variable":  `{"LD_PRELOAD":"x"}`,
		"a name in lower case":        `{"KPSSH_a":"x"}`,
		"a NUL":                       `{"KPSSH_A":"a\u0000b"}`,
		"a line break in a value":     `{"KPSSH_A":"a\nb"}`,
		"an escape sequence":          `{"KPSSH_A":"\u001b[2J"}`,
		"a bidi override":             `{"KPSSH_A":"` + "\u202e" + `x"}`,
		"a line separator":            `{"KPSSH_A":"\u2028"}`,
		"invalid UTF-8":               "{\"KPSSH_A\":\"\xff\"}",
		"a lone surrogate":            `{"KPSSH_A":"\ud800"}`,
		"something after it":          `{}{}`,
		"a nested object":             `{"KPSSH_A":{}}`,
		"more than there may be":      string(frameOf(t, maxParameters+1, 1)),
		"more bytes than there may":   string(frameOf(t, 4, MaxParametersSize/4)),
		"a delete character":          "{\"KPSSH_A\":\"\x7f\"}",
		"a control character of C1":   "{\"KPSSH_A\":\"\u0085\"}",
		"a zero width space in a val": "{\"KPSSH_A\":\"a\u200bb\"}",
	}, func(t *testing.T, frame string) {
		if got, err := DecodeParameters([]byte(frame)); ReasonOf(err) == "" {
			t.Errorf("read as %q, %v", got, err)
		}
	})
}

func frameOf(t testing.TB, n, size int) []byte {
	t.Helper()
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("KPSSH_", i)] = strings.Repeat("x", size)
	}
	if _, err := EncodeParameters(m); ReasonOf(err) != ReasonTooLarge {
		t.Errorf("%d parameters of %d bytes: %v", n, size, err)
	}
	return marshal(t, m)
}
