package signing

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Every phase with every phase's script: only the four that are listed are found.
func TestFindTakesAllFourMarks(t *testing.T) {
	list := new(Allowlist)
	phases := []Phase{PhaseInstall, PhaseJoin, PhaseLeave, PhaseUninstall}
	for _, phase := range phases {
		list.Scripts = append(list.Scripts, AllowedScript{Profile: "p", Version: "1", Phase: phase, Digest: Digest([]byte(phase))})
	}
	found := 0
	for _, phase := range phases {
		for _, script := range phases {
			s, err := list.Find("p", "1", phase, Digest([]byte(script)))
			if phase == script {
				found++
				if err != nil || s.Phase != phase {
					t.Errorf("%s: %v", phase, err)
				}
				continue
			}
			wantReason(t, err, ReasonNotAllowed)
		}
	}
	if found != 4 {
		t.Errorf("found %d", found)
	}
	for _, c := range []struct{ profile, version, digest string }{
		{"q", "1", Digest([]byte("join"))}, {"p", "2", Digest([]byte("join"))}, {"p", "1", Digest(nil)},
		{"", "", ""}, {"P", "1", Digest([]byte("join"))},
	} {
		_, err := list.Find(c.profile, c.version, PhaseJoin, c.digest)
		wantReason(t, err, ReasonNotAllowed)
	}
	_, err := (*Allowlist)(nil).Find("p", "1", PhaseJoin, Digest(nil))
	wantReason(t, err, ReasonNotAllowed)
}

func TestAScriptThatLeftTheListIsNotAllowed(t *testing.T) {
	p := newPool(t)
	s := p.allowlist.Scripts[0]
	next := *p.allowlist
	next.Version++
	next.Scripts = nil
	list, err := OpenAllowlist(sign(t, &next, p.author), p.rootDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = list.Find(s.Profile, s.Version, s.Phase, s.Digest)
	wantReason(t, err, ReasonNotAllowed)
}

func TestCheckParameters(t *testing.T) {
	good := map[string]string{"KPSSH_CLUSTER_ENDPOINT": "https://10.0.0.1:6443", "KPSSH_NODE_NAME": "node-1"}
	with := func(pairs ...string) map[string]string {
		m := maps.Clone(good)
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	without := func(name string) map[string]string {
		m := maps.Clone(good)
		delete(m, name)
		return m
	}
	token := []string{"KPSSH_BOOTSTRAP_TOKEN"}
	each(t, map[string]struct {
		params  map[string]string
		secrets []string
		want    Reason
	}{
		"what the schema asks for":                   {good, token, ""},
		"optional ones too":                          {with("KPSSH_VAR_CHANNEL", "edge", "KPSSH_VAR_MTU", "1500"), token, ""},
		"an optional one that is empty":              {with("KPSSH_VAR_MTU", ""), token, ""},
		"a required one is missing":                  {without("KPSSH_NODE_NAME"), token, ReasonParam},
		"a required one is empty":                    {with("KPSSH_NODE_NAME", ""), token, ReasonParam},
		"nothing":                                    {nil, token, ReasonPin},
		"a pinned one is missing":                    {without("KPSSH_CLUSTER_ENDPOINT"), token, ReasonPin},
		"a pinned one is empty":                      {with("KPSSH_CLUSTER_ENDPOINT", ""), token, ReasonPin},
		"a pinned one is another":                    {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.2:6443"), token, ReasonPin},
		"a pinned one with a slash":                  {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.1:6443/"), token, ReasonPin},
		"a pinned one in upper case":                 {with("KPSSH_CLUSTER_ENDPOINT", "HTTPS://10.0.0.1:6443"), token, ReasonPin},
		"a pinned one with a final dot":              {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.1.:6443"), token, ReasonPin},
		"a pinned one as IPv6":                       {with("KPSSH_CLUSTER_ENDPOINT", "https://[::ffff:10.0.0.1]:6443"), token, ReasonPin},
		"a pinned one with zeros":                    {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.01:6443"), token, ReasonPin},
		"a pinned one with a user":                   {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.1:6443@evil.example"), token, ReasonPin},
		"a pinned one with a space":                  {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.1:6443 "), token, ReasonPin},
		"a pinned one with NUL":                      {with("KPSSH_CLUSTER_ENDPOINT", "https://10.0.0.1:6443\x00"), token, ReasonPin},
		"an unknown name":                            {with("KPSSH_ALLOWED_SIGNERS", "x"), token, ReasonParam},
		"an unknown name in lower case":              {with("kpssh_node_name", "x"), token, ReasonParam},
		"LD_PRELOAD":                                 {with("LD_PRELOAD", "x"), token, ReasonParam},
		"not of the enum":                            {with("KPSSH_VAR_CHANNEL", "nightly"), token, ReasonParam},
		"the enum in upper case":                     {with("KPSSH_VAR_CHANNEL", "EDGE"), token, ReasonParam},
		"past the pattern":                           {with("KPSSH_VAR_MTU", "12"), token, ReasonParam},
		"a pattern matched in part":                  {with("KPSSH_VAR_MTU", "1500;"), token, ReasonParam},
		"a pattern matched up to a line break":       {with("KPSSH_VAR_MTU", "150\n"), token, ReasonParam},
		"too long":                                   {with("KPSSH_VAR_MTU", "15000"), token, ReasonParam},
		"a secret is missing":                        {good, nil, ReasonParam},
		"a secret as a plain parameter":              {with("KPSSH_BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef"), token, ReasonParam},
		"a secret as a plain parameter and not else": {with("KPSSH_BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef"), nil, ReasonParam},
		"a secret that is not listed":                {good, append(slices.Clone(token), "KPSSH_SECRET_X"), ReasonParam},
		"a secret twice":                             {good, append(slices.Clone(token), token...), ReasonParam},
		"a plain parameter as a secret":              {good, append(slices.Clone(token), "KPSSH_NODE_NAME"), ReasonParam},
	}, func(t *testing.T, c struct {
		params  map[string]string
		secrets []string
		want    Reason
	}) {
		p := newPool(t)
		list, err := OpenAllowlist(sign(t, p.allowlist, p.author), p.rootDoc)
		if err != nil {
			t.Fatal(err)
		}
		wantReason(t, list.Scripts[0].Check(c.params, c.secrets), c.want)
	})
}

// What each type takes and what it does not, with no pattern, at its own limits.
func TestParameterTypes(t *testing.T) {
	ca := bundle(caCert(t, "ca"))
	each(t, map[string]struct{ good, bad []string }{
		string(ParamString): {
			[]string{"", "a", "two words", "v1.31.0+k3s1", "https://x/y?"[:11], "a=b,c=d", "user@host:~/x", "100%"},
			[]string{"$(id)", "`id`", "a;b", "a|b", "a&b", "a>b", "a<b", "a'b", `a"b`, `a\b`, "a*b", "a?b", "a!b", "a#b", "a{b", "a(b", "a[b", "ü", strings.Repeat("a", 513)},
		},
		string(ParamEndpoint): {
			[]string{"https://10.0.0.1:6443", "https://api.example.com", "https://api.example.com:443", "https://[2001:db8::1]:6443", "https://[::1]", "https://localhost:1"},
			[]string{"", "https://", "http://10.0.0.1", "HTTPS://10.0.0.1", "https://10.0.0.1/", "https://10.0.0.1:6443/x", "https://10.0.0.1?x", "https://10.0.0.1#x",
				"https://u@10.0.0.1", "https://u:p@10.0.0.1", "https://10.0.0.1:", "https://10.0.0.1:0", "https://10.0.0.1:06443", "https://10.0.0.1:65536", "https://10.0.0.1:+1",
				"https://API.example.com", "https://api.example.com.", "https://api..com", "https://-a.com", "https://10.0.0.256", "https://10.0.0", "https://127.1", "https://0x7f.0x1", "https://2130706433",
				"https://2001:db8::1", "https://[2001:db8::1", "https://[2001:DB8::1]", "https://[2001:db8:0::1]", "https://[10.0.0.1]", "https://[fe80::1%eth0]", "https://[]", "https://[::1]:", "https://[::1]x:1",
				"https://10.0.0.1:6443@evil.example:1", "https://api.example.com:6443 ", "https://аpi.example.com", "//10.0.0.1", "10.0.0.1:6443", "https://api_x.example.com"},
		},
		string(ParamIP): {
			[]string{"10.0.0.1", "2001:db8::1", "::1", "::ffff:10.0.0.1", "0.0.0.0"},
			[]string{"", "10.0.0", "10.0.0.01", "10.0.0.1/24", "10.0.0.1:1", "[::1]", "2001:DB8::1", "2001:db8:0:0:0:0:0:1", "fe80::1%eth0", "localhost", "10.0.0.1 ", "١٠.0.0.1"},
		},
		string(ParamHost): {
			[]string{"10.0.0.1", "2001:db8::1", "pi-3", "pi.example.com", "a.b.c.d1", "1pi.example.com", "xn--bcher-kva.example"},
			[]string{"", ".", "a.", ".a", "a..b", "A", "a_b", "-a", "a-", "127.1", "0x7f.1", "1", "10.0.0.256", "a.1", "a b", "ü.example", strings.Repeat("a", 64), strings.Repeat("a.", 127) + "aa"},
		},
		string(ParamNodeName): {
			[]string{"node-1", "node.example.com", "10.0.0.1", "0"},
			[]string{"", "Node", "node_1", "-node", "node-", "node.", "no de", strings.Repeat("a.", 127) + "aa", "node;reboot", "../x"},
		},
		string(ParamURI): {
			[]string{"kpssh://pool/host-1", "https://pkgs.k8s.io/core:/stable:/v1.31/deb/", "aws:///eu-central-1a/i-0abc", "https://[2001:db8::1]/x?a=b&c=d#e", "oci://r.example/x@sha256:ab", "a://%20"},
			[]string{"", "x", "://x", "a://", "A://x", "1a://x", "a:x", "a:/x", "a://x y", "a://x'y", `a://x"y`, "a://$(id)", "a://`id`", "a://x;y", "a://x|y", `a://x\y`, "a://x*", "a://ü", "a://" + strings.Repeat("x", 509)},
		},
		string(ParamLabels): {
			[]string{"", "a=b", "a=", "a.b/c=d,e=f", "kubernetes.io/arch=arm64,x=1", "node.kubernetes.io/instance-type=pi-4"},
			[]string{"a", "=b", "a=b,", ",a=b", "a=b,a=c", "a=b,,c=d", "a b=c", "a=b c", "a/b/c=d", "/a=b", "A.b/c=d", "-a=b", "a=-b", "a=$(id)", "a=b=c", strings.Repeat("a", 64) + "=b", "a=" + strings.Repeat("b", 64)},
		},
		string(ParamTaints): {
			[]string{"", "a:NoSchedule", "a=b:NoExecute", "karpenter.sh/unregistered:NoExecute", "a=:NoSchedule", "a:NoSchedule,a:NoExecute", "x.y/z=1:PreferNoSchedule,b:NoSchedule"},
			[]string{"a", "a:", ":NoSchedule", "a:noschedule", "a:Evict", "a=b", "a=b:NoSchedule,", "a:NoSchedule,a:NoSchedule", "a=1:NoSchedule,a=2:NoSchedule", "a=b:c:NoSchedule", "a b:NoSchedule", "a:NoSchedule;x"},
		},
		string(ParamToken): {
			[]string{"abcdef.0123456789abcdef", "000000.0000000000000000"},
			[]string{"", ".", "abcdef", "abcdef.0123456789abcde", "abcdef.0123456789abcdef0", "abcde.0123456789abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcde.", "abcdef.0123456789abcdef\n", "abcdef:0123456789abcdef"},
		},
		string(ParamCABundle): {
			[]string{ca, bundle(caCert(t, "a"), caCert(t, "b")), bundle([]byte("\n\n"), caCert(t, "a"), []byte("\n \n"), caCert(t, "b")), bundle(bytes.ReplaceAll(caCert(t, "a"), []byte("\n"), []byte("\r\n"))), bundle(bytes.TrimSpace(caCert(t, "a")))},
			[]string{"", "AA==", "x", ca[:len(ca)-8], ca + "\n", strings.TrimRight(ca, "=") + "!", string(caCert(t, "a")),
				bundle(), bundle([]byte("\n")), bundle([]byte("# comment\n"), caCert(t, "a")), bundle(caCert(t, "a"), []byte("junk")), bundle(caCert(t, "a"), []byte("-----BEGIN CERTIFICATE-----\n")),
				bundle(bytes.ReplaceAll(caCert(t, "a"), []byte("CERTIFICATE"), []byte("TRUSTED CERTIFICATE"))), bundle(bytes.ReplaceAll(caCert(t, "a"), []byte("CERTIFICATE"), []byte("X509 CERTIFICATE"))),
				bundle(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"A": "b"}, Bytes: firstCert(t, caCert(t, "a"))})),
				bundle(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no DER")})),
				bundle(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: append(firstCert(t, caCert(t, "a")), 0)})),
				bundle(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: firstCert(t, caCert(t, "a"))})),
				bundle(unwrapped(t, caCert(t, "a"))), bundle(slices.Repeat(caCert(t, "a"), 70))},
		},
	}, func(t *testing.T, c struct{ good, bad []string }) {
		paramType := ParamType(strings.TrimPrefix(t.Name(), "TestParameterTypes/"))
		p := Parameter{Name: "KPSSH_X", Type: paramType}
		wantReason(t, p.check(map[string]bool{}), "")
		for _, v := range c.good {
			if err := p.checkValue(v); err != nil {
				t.Errorf("%q: %v", v, err)
			}
		}
		for _, v := range append(c.bad, "a\x00b", "\x00", "a\nb", "\t", "\x7f", "\x1b[2J", "\xff", "\u202ea", "\u2028", "\u00ad", "a\u200b") {
			wantReason(t, p.checkValue(v), ReasonParam)
		}
		// A pattern narrows a type, and never widens it past control characters.
		p.Pattern = `(?s).*`
		for _, v := range []string{"a\x00b", "a\nb", "\xff", "\u202ea"} {
			wantReason(t, p.checkValue(v), ReasonParam)
		}
	})
}

func firstCert(t testing.TB, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	return block.Bytes
}

// unwrapped is a certificate with its base64 on one line, which some readers take.
func unwrapped(t testing.TB, text []byte) []byte {
	t.Helper()
	return []byte("-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(firstCert(t, text)) + "\n-----END CERTIFICATE-----\n")
}

func TestPatternsMatchWholeValues(t *testing.T) {
	each(t, map[string]struct {
		pattern   string
		good, bad []string
	}{
		"without anchors":           {`a+`, []string{"a", "aa"}, []string{"", "ab", "ba", "a "}},
		"with anchors of its own":   {`^a+$`, []string{"a"}, []string{"ab", "ba"}},
		"an alternative":            {`a|b`, []string{"a", "b"}, []string{"ac", "cb", "ab"}},
		"many lines":                {`(?m)^a$`, []string{"a"}, []string{"b"}},
		"any case":                  {`(?i)abc`, []string{"ABC"}, []string{"ABCD"}},
		"an empty value":            {`a*`, []string{""}, []string{"b"}},
		"a quoted text":             {`\Qa.b\E`, []string{"a.b"}, []string{"axb"}},
		"characters that a shell":   {`\$\(id\)`, []string{"$(id)"}, []string{"id"}},
		"text beyond ASCII, if set": {`\p{L}+`, []string{"über"}, []string{"a1"}},
	}, func(t *testing.T, c struct {
		pattern   string
		good, bad []string
	}) {
		p := Parameter{Name: "KPSSH_X", Type: ParamString, Pattern: c.pattern}
		wantReason(t, p.check(map[string]bool{}), "")
		for _, v := range c.good {
			wantReason(t, p.checkValue(v), "")
		}
		for _, v := range c.bad {
			wantReason(t, p.checkValue(v), ReasonParam)
		}
	})
}

func TestBundlePinsAreByKey(t *testing.T) {
	a, b := caCert(t, "a"), caCert(t, "b")
	pinsOf := func(value string) []string {
		pins, err := SPKIPins(value)
		if err != nil {
			t.Fatal(err)
		}
		return pins
	}
	// caCert has a fixed key and a fresh signature: another certificate of the same key.
	renewed := caCert(t, "a")
	if bytes.Equal(renewed, a) {
		t.Fatal("the renewed certificate is the same")
	}
	p := Parameter{Name: "KPSSH_CLUSTER_CA_B64", Type: ParamCABundle, Pins: pinsOf(bundle(a))}
	wantReason(t, p.check(map[string]bool{}), "")
	each(t, map[string]struct {
		value string
		want  Reason
	}{
		"the certificate":                       {bundle(a), ""},
		"the certificate, renewed":              {bundle(renewed), ""},
		"it and its renewal":                    {bundle(a, renewed), ""},
		"another CA":                            {bundle(b), ReasonPin},
		"another CA after the right one":        {bundle(a, b), ReasonPin},
		"another CA before the right one":       {bundle(b, a), ReasonPin},
		"none":                                  {"", ReasonParam},
		"the digest itself":                     {p.Pins[0], ReasonParam},
		"another CA where no one looks":         {bundle(a, []byte("\n#"), b), ReasonParam},
		"another CA under another name":         {bundle(a, bytes.ReplaceAll(b, []byte("CERTIFICATE"), []byte("TRUSTED CERTIFICATE"))), ReasonParam},
		"another CA in a line that is too long": {bundle(a, unwrapped(t, b)), ReasonParam},
	}, func(t *testing.T, c struct {
		value string
		want  Reason
	}) {
		wantReason(t, p.checkValue(c.value), c.want)
	})
	both := pinsOf(bundle(a, b, renewed))
	if len(both) != 2 {
		t.Errorf("two keys have pins %v", both)
	}
	p.Pins = both
	wantReason(t, p.checkValue(bundle(b, a)), "")
}

func TestRefusalsNeverTellASecret(t *testing.T) {
	const canary = "hunter2-canary"
	s := &AllowedScript{Parameters: []Parameter{
		{Name: "KPSSH_SECRET_A", Type: ParamString, Pattern: `[0-9]+`, Secret: true},
		{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: ParamToken, Secret: true, Optional: true},
		{Name: "KPSSH_VAR_X", Type: ParamIP, Optional: true},
	}}
	for _, err := range []error{
		s.CheckSecrets(map[string]string{"KPSSH_SECRET_A": canary}),
		s.CheckSecrets(map[string]string{"KPSSH_SECRET_A": "1", "KPSSH_BOOTSTRAP_TOKEN": canary}),
		s.CheckSecrets(map[string]string{"KPSSH_SECRET_A": canary + "\n"}),
		s.Check(map[string]string{"KPSSH_VAR_X": canary}, []string{"KPSSH_SECRET_A"}),
		s.Check(map[string]string{"KPSSH_SECRET_A": canary}, nil),
	} {
		wantReason(t, err, ReasonParam)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the refusal tells: %v", err)
		}
	}
	wantReason(t, s.CheckSecrets(map[string]string{"KPSSH_SECRET_A": "123", "KPSSH_BOOTSTRAP_TOKEN": "abcdef.0123456789abcdef"}), "")
}

func TestCommitment(t *testing.T) {
	challenge := bytes.Repeat([]byte{1}, ChallengeSize)
	c := Commitment(challenge, "KPSSH_SECRET_A", "value")
	if want := Digest([]byte(string(challenge) + "KPSSH_SECRET_A\x00value")); c != want {
		t.Errorf("got %s, want %s", c, want)
	}
	for _, other := range []string{
		Commitment(challenge, "KPSSH_SECRET_B", "value"), Commitment(challenge, "KPSSH_SECRET_A", "other"),
		Commitment(bytes.Repeat([]byte{2}, ChallengeSize), "KPSSH_SECRET_A", "value"),
		Commitment(challenge, "KPSSH_SECRET_", "Avalue"), Commitment(challenge, "KPSSH_SECRET_Av", "alue"),
	} {
		if other == c {
			t.Error("two secrets have one commitment")
		}
	}
}

// A controller writes the refusal into a condition: one that changes each time is a write without end.
func TestTheSameParametersGetTheSameRefusal(t *testing.T) {
	script := &AllowedScript{}
	params := map[string]string{}
	for i := range 64 {
		params[fmt.Sprintf("KPSSH_VAR_%02d", 63-i)] = "x"
	}
	for range 20 {
		if err := script.Check(params, nil); err == nil || !strings.Contains(err.Error(), "KPSSH_VAR_00") {
			t.Fatalf("refusal = %v, want the first by name", err)
		}
	}
}
