package vectors

import (
	"bytes"
	"encoding/base64"
	"maps"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// orders adds a case of an order; files beside it replace those that are given.
func (m *maker) orders(want signing.Reason, from, about string, envelope []byte, files map[string][]byte) {
	m.ordersAt(want, from, about, during, envelope, files)
}

func (m *maker) ordersAt(want signing.Reason, from, about string, when time.Time, envelope []byte, files map[string][]byte) {
	all := map[string][]byte{"order.json": envelope}
	maps.Copy(all, files)
	m.add("order", want, from, about, all, settings{HostID: hostID, Challenge: challenge, At: &when})
}

// phase is the order of another phase, with what belongs to it.
func (m *maker) phase(phase signing.Phase, script string) (envelope []byte, files map[string][]byte) {
	body := []byte(script)
	return m.signOrder(func(o *signing.Order) {
		o.Phase, o.Script, o.Parameters, o.Secrets = phase, signing.Digest(body), signing.Digest([]byte("{}")), map[string]string{}
	}), map[string][]byte{"parameters.json": []byte("{}"), "secrets.json": []byte("{}"), "script": body}
}

func (m *maker) goodOrders() {
	m.orders("", "", "join", m.signOrder(nil), nil)
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseLeave} {
		envelope, files := m.phase(phase, scripts[phase])
		m.orders("", "", string(phase), envelope, files)
	}
	for _, phase := range []signing.Phase{signing.PhaseInstall, signing.PhaseLeave, signing.PhaseUninstall} {
		envelope, files := m.phase(phase, scripts[signing.PhaseJoin])
		m.orders(signing.ReasonNotAllowed, "A6", "the join script as "+string(phase), envelope, files)
	}
	envelope, files := m.phase(signing.PhaseJoin, scripts[signing.PhaseLeave])
	m.orders(signing.ReasonNotAllowed, "A6", "the leave script as join", envelope, files)
	dropped, files := m.phase(signing.PhaseJoin, "echo dropped\n")
	m.orders(signing.ReasonNotAllowed, "A4", "a script that the list does not hold", dropped, files)
	for about, change := range map[string]func(*signing.Order){
		"another version of the profile": func(o *signing.Order) { o.Version = "1.0.1" },
		"another profile":                func(o *signing.Order) { o.Profile = "other" },
	} {
		m.orders(signing.ReasonNotAllowed, "A6", about, m.signOrder(change), nil)
	}
	m.orders(signing.ReasonWrongHost, "A2", "for another host", m.signOrder(func(o *signing.Order) { o.HostID = "f0f0" }), nil)
	m.orders(signing.ReasonStaleChallenge, "A2", "for another session", m.signOrder(func(o *signing.Order) { o.Challenge = bytes.Repeat([]byte{1}, 32) }), nil)
	m.orders(signing.ReasonRollback, "A4", "made under another allowlist", m.signOrder(func(o *signing.Order) { o.Allowlist = signing.Digest([]byte("older")) }), nil)
}

func (m *maker) orderSignatures() {
	for who, s := range map[string]signing.Signer{"a key of its own": m.nobody, "the author's key": m.author, "the root key": m.root, "the host's key": m.host} {
		m.orders(signing.ReasonUntrusted, "A1", "signed with "+who, m.signOrder(nil, s), nil)
	}
	payload := encode(m.t, &m.order)
	good := signature(m.t, signing.TypeOrder, payload, m.dispatch)
	junk := bytes.Repeat([]byte{7}, 64)
	m.orders(signing.ReasonUntrusted, "A1", "without a signature", envelope(signing.TypeOrder, payload), nil)
	m.orders("", "", "a signature of nobody before the good one", envelope(signing.TypeOrder, payload, junk, good), nil)
	m.orders(signing.ReasonUntrusted, "B1", "more signatures of nobody than are tried", envelope(signing.TypeOrder, payload, junk, junk, junk, junk, junk, junk, junk, good), nil)
	m.orders(signing.ReasonTooLarge, "B1", "nine signatures", envelope(signing.TypeOrder, payload, good, junk, junk, junk, junk, junk, junk, junk, junk), nil)
	flipped := bytes.Replace(payload, []byte(`"fence":7`), []byte(`"fence":8`), 1)
	m.orders(signing.ReasonUntrusted, "A7", "a byte of the payload changed after it was signed", envelope(signing.TypeOrder, flipped, good), nil)
	two := m.rootDoc
	two.Dispatch = role(2, m.dispatch, m.nobody)
	root := chain(m.signRoot(two, m.root))
	m.orders(signing.ReasonUntrusted, "A10", "one of two dispatch keys that must sign", m.signOrder(nil), root)
	m.orders("", "A10", "two of two dispatch keys that must sign", m.signOrder(nil, m.dispatch, m.nobody), root)
	m.orders(signing.ReasonUntrusted, "A10", "one dispatch key twice where two must sign", envelope(signing.TypeOrder, payload, good, good), root)
	m.orders(signing.ReasonUntrusted, "A12", "signed with a dispatch key that the next root dropped", m.signOrder(nil), chain(m.rootEnvelope, m.otherDispatch(2)))
	m.orders("", "A12", "signed with the dispatch key of the next root", m.signOrder(nil, m.nobody), chain(m.rootEnvelope, m.otherDispatch(2)))
}

func (m *maker) orderExpiry() {
	join := m.signOrder(nil)
	m.ordersAt("", "A5", "one second before the list expires", m.list.Expires.Add(-time.Second), join, nil)
	m.ordersAt(signing.ReasonExpired, "A5", "the second the list expires", m.list.Expires, join, nil)
	leave, files := m.phase(signing.PhaseLeave, scripts[signing.PhaseLeave])
	grace := time.Duration(m.list.Scripts[2].GraceSeconds) * time.Second
	m.ordersAt("", "A5", "a leave within its grace", m.list.Expires.Add(grace-time.Second), leave, files)
	m.ordersAt(signing.ReasonExpired, "A5", "a leave after its grace", m.list.Expires.Add(grace), leave, files)
	late := m.list
	late.Issued, late.Expires = expires.Add(time.Hour), expires.AddDate(1, 0, 0)
	order := m.signOrder(func(o *signing.Order) { o.Allowlist = signing.Digest(encode(m.t, &late)) })
	m.ordersAt(signing.ReasonExpired, "A18", "a clock in 1970 and an author who signed after the root expired", time.Unix(0, 0).UTC(), order,
		map[string][]byte{"allowlist.json": m.signList(late, m.author)})
	m.ordersAt("", "A18", "a clock in 1970", time.Unix(0, 0).UTC(), join, nil)
}

// differentials are texts that two JSON readers could read differently, each well signed.
func (m *maker) differentials() {
	good := string(encode(m.t, &m.order))
	replace := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	secrets := good[strings.Index(good, `"secrets":`):strings.Index(good, `,"timeout`)]
	for about, payload := range map[string]string{
		"null":                              "null",
		"a string":                          `"order"`,
		"an array around it":                "[" + good + "]",
		"an empty object":                   "{}",
		"cut short":                         good[:len(good)-1],
		"a line break after it":             good + "\n",
		"a space within":                    replace(`,"fence"`, `, "fence"`),
		"a byte order mark":                 "\ufeff" + good,
		"a second object after it":          good + "{}",
		"a comma at the end":                good[:len(good)-1] + ",}",
		"a comment":                         replace("{", "{/**/"),
		"an unknown field":                  replace("{", `{"x":1,`),
		"a field twice and the same":        replace(`"phase":"join",`, `"phase":"join","phase":"join",`),
		"a field twice, the good one last":  replace(`"phase":"join",`, `"phase":"leave","phase":"join",`),
		"a field twice, the good one first": replace(`"phase":"join",`, `"phase":"join","phase":"leave",`),
		"a field in upper case":             replace(`"phase"`, `"PHASE"`),
		"a field in upper case beside it":   replace(`"phase":"join"`, `"phase":"join","PHASE":"leave"`),
		"a field with the letter U+017F":    replace(`"phase"`, `"pha`+"\u017f"+`e"`),
		"a field with an escape":            replace(`"phase"`, `"ph\u0061se"`),
		"a value with an escape":            replace(`"join"`, `"jo\u0069n"`),
		"a value with invalid UTF-8":        replace(`"join"`, "\"jo\xffin\""),
		"a value with a lone surrogate":     replace(`"join"`, `"\ud800"`),
		"a value with NUL":                  replace(`"join"`, `"join\u0000"`),
		"a field that is null":              replace(`"phase":"join"`, `"phase":null`),
		"a field that is missing":           replace(`"phase":"join",`, ``),
		"a field of another type":           replace(`"phase":"join"`, `"phase":1`),
		"a map that is null":                replace(secrets, `"secrets":null`),
		"a map with a key twice":            replace(`"secrets":{`, `"secrets":{"KPSSH_BOOTSTRAP_TOKEN":"`+signing.Digest(nil)+`",`),
		"a map out of order":                replace(`"secrets":{`, `"secrets":{"KPSSH_SECRET_Z":"`+signing.Digest(nil)+`",`),
		"fields in another order":           "{" + `"timeoutSeconds":600,` + strings.Replace(good[1:], `,"timeoutSeconds":600`, "", 1),
		"a number with a fraction":          replace(`"fence":7`, `"fence":7.0`),
		"a number with an exponent":         replace(`"fence":7`, `"fence":7e0`),
		"a number that is minus zero":       replace(`"fence":7`, `"fence":-0`),
		"a number beyond 64 bits":           replace(`"fence":7`, `"fence":9223372036854775808`),
		"a number in a string":              replace(`"fence":7`, `"fence":"7"`),
		"base64 without padding":            strings.Replace(good, base64.StdEncoding.EncodeToString(challenge), base64.RawStdEncoding.EncodeToString(challenge), 1),
	} {
		if payload == good {
			m.t.Fatalf("%s: nothing changed", about)
		}
		m.orders(signing.ReasonMalformed, "B2", "payload: "+about, m.sealed(signing.TypeOrder, []byte(payload), m.dispatch), nil)
	}
	m.orders(signing.ReasonMalformed, "B3", "payload: garbage", m.sealed(signing.TypeOrder, []byte("\x00\x01\x02"), m.dispatch), nil)
}

func (m *maker) orderEnvelopes() {
	payload := encode(m.t, &m.order)
	sig := signature(m.t, signing.TypeOrder, payload, m.dispatch)
	std, url := base64.StdEncoding.EncodeToString, base64.URLEncoding.EncodeToString
	good := string(envelope(signing.TypeOrder, payload, sig))
	add := func(want signing.Reason, about, text string) {
		m.orders(want, "B2", "envelope: "+about, []byte(text), nil)
	}
	add("", "white space around and within", " \n\t"+strings.ReplaceAll(good, `,"`, ` , "`)+"\r\n")
	add("", "fields in another order", `{"signatures":[{"sig":"`+std(sig)+`"}],"payload":"`+std(payload)+`","payloadType":"`+signing.TypeOrder+`"}`)
	add("", "unknown fields", strings.Replace(good, "{", `{"x":{"y":[1,null,"z"]},`, 1))
	add("", "the URL alphabet of base64", `{"payloadType":"`+signing.TypeOrder+`","payload":"`+url(payload)+`","signatures":[{"sig":"`+url(sig)+`"}]}`)
	add("", "escaped slashes", strings.ReplaceAll(good, "/", `\/`))
	add("", "a key id that lies", strings.Replace(good, `{"sig"`, `{"keyid":"sha256:00","sig"`, 1))
	for about, text := range map[string]string{
		"the payload twice":        strings.Replace(good, `,"signatures"`, `,"payload":"`+std(payload)+`","signatures"`, 1),
		"names in another case":    strings.Replace(good, "payloadType", "PayloadType", 1),
		"no payload":               strings.Replace(good, `"payload":"`+std(payload)+`",`, "", 1),
		"signatures that are null": strings.Replace(good, `[{"sig":"`+std(sig)+`"}]`, "null", 1),
		"a line break in base64":   strings.Replace(good, std(payload), std(payload)[:8]+`\n`+std(payload)[8:], 1),
		"something after it":       good + "{}",
		"a byte order mark":        "\ufeff" + good,
		"null":                     "null",
		"nothing":                  "",
	} {
		add(signing.ReasonMalformed, about, text)
	}
	m.orders(signing.ReasonTooLarge, "B5", "envelope: one byte more than an order may have", []byte(good+strings.Repeat(" ", 8<<10+1-len(good))), nil)
	m.orders(signing.ReasonTooLarge, "B5", "envelope: more structure than an envelope needs", []byte(strings.Replace(good, "{", `{"x":[`+strings.Repeat("0,", 300)+`0],`, 1)), nil)
	m.orders(signing.ReasonTooLarge, "B5", "payload: more than a key service signs in one piece", m.sealed(signing.TypeOrder, append(append([]byte{}, payload...), make([]byte, 4096)...), m.dispatch), nil)
}

func (m *maker) malformedOrders() {
	for about, change := range map[string]func(*signing.Order){
		"a challenge of 31 bytes":      func(o *signing.Order) { o.Challenge = o.Challenge[:31] },
		"no time":                      func(o *signing.Order) { o.TimeoutSeconds = 0 },
		"more time than a day":         func(o *signing.Order) { o.TimeoutSeconds = 24*60*60 + 1 },
		"an unknown phase":             func(o *signing.Order) { o.Phase = "reboot" },
		"a fence below zero":           func(o *signing.Order) { o.Fence = -1 },
		"a secret named PATH":          func(o *signing.Order) { o.Secrets = map[string]string{"PATH": signing.Digest(nil)} },
		"a secret in clear":            func(o *signing.Order) { o.Secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": token} },
		"a profile that is a path":     func(o *signing.Order) { o.Profile = "../etc" },
		"a digest in upper case":       func(o *signing.Order) { o.Script = strings.ToUpper(o.Script) },
		"a claim with a line break in": func(o *signing.Order) { o.Claim = "a\nb" },
	} {
		m.orders(signing.ReasonMalformed, "", "field: "+about, m.signOrder(change), nil)
	}
}

// frame adds a case of an order with other parameters than the good ones, which the order names.
func (m *maker) frame(want signing.Reason, from, about string, frame []byte) {
	envelope := m.signOrder(func(o *signing.Order) { o.Parameters = signing.Digest(frame) })
	m.orders(want, from, about, envelope, map[string][]byte{"parameters.json": frame})
}

// param is frame with one parameter changed; no value leaves it out.
func (m *maker) param(want signing.Reason, from, about, name string, value ...string) {
	params := maps.Clone(m.params)
	delete(params, name)
	for _, v := range value {
		params[name] = v
	}
	m.frame(want, from, about, encode(m.t, params))
}

func (m *maker) pins() {
	pin := func(about, name string, value ...string) {
		m.param(signing.ReasonPin, "A8", "pin: "+about, name, value...)
	}
	const e = "KPSSH_CLUSTER_ENDPOINT"
	m.param("", "A8", "pin: the second one", e, "https://[2001:db8::1]:6443")
	pin("another endpoint", e, "https://evil.example.com:6443")
	pin("the endpoint is missing", e)
	pin("the endpoint is empty", e, "")
	pin("the endpoint with a slash", e, endpoint+"/")
	pin("the endpoint in upper case", e, strings.ToUpper(endpoint))
	pin("the endpoint with a final dot", e, "https://api.example.com.:6443")
	pin("the endpoint with a zero before its port", e, "https://api.example.com:06443")
	pin("the endpoint with a user", e, "https://api.example.com:6443@evil.example.com:6443")
	pin("the endpoint with a space", e, endpoint+" ")
	pin("the endpoint's IPv6 address in upper case", e, "https://[2001:DB8::1]:6443")
	pin("the endpoint's IPv6 address written out", e, "https://[2001:db8:0:0:0:0:0:1]:6443")
	pin("another cluster name", "KPSSH_CLUSTER_NAME", "prod-2")
	pin("the cluster name in upper case", "KPSSH_CLUSTER_NAME", "PROD-1")
	const ca = "KPSSH_CLUSTER_CA_B64"
	cluster, attacker := certificate(m.t, "cluster"), certificate(m.t, "attacker")
	pin("another CA", ca, m.otherBundle)
	pin("another CA after the right one", ca, bundle(cluster, attacker))
	pin("another CA before the right one", ca, bundle(attacker, cluster))
	m.param("", "A8", "pin: the right CA twice", ca, bundle(cluster, cluster))
	pin("the CA is missing", ca)
	m.param(signing.ReasonParam, "A8", "pin: another CA in a block of another name", ca, bundle(cluster, bytes.ReplaceAll(attacker, []byte("CERTIFICATE"), []byte("TRUSTED CERTIFICATE"))))
	m.param(signing.ReasonParam, "A8", "pin: another CA in a comment", ca, bundle(cluster, []byte("# "), attacker))
}

func (m *maker) parameters() {
	param := func(about, name string, value ...string) {
		m.param(signing.ReasonParam, "A7", "param: "+about, name, value...)
	}
	m.param("", "", "param: an enum", "KPSSH_VAR_CHANNEL", "edge")
	m.param("", "", "param: a pattern", "KPSSH_VAR_MTU", "1500")
	m.param("", "", "param: an optional one that is empty", "KPSSH_VAR_MTU", "")
	m.param("", "", "param: text that a shell leaves alone", "KPSSH_VAR_NOTE", "rack 7, row b: user@host/x=1%")
	param("a required one is missing", "KPSSH_NODE_NAME")
	param("a required one is empty", "KPSSH_NODE_NAME", "")
	param("a name that the schema does not have", "KPSSH_ALLOWED_SIGNERS", "x")
	param("a name that is none of ours", "LD_PRELOAD", "x")
	param("a name in lower case", "kpssh_node_name", "x")
	param("a secret among the parameters", "KPSSH_BOOTSTRAP_TOKEN", token)
	param("a node name in upper case", "KPSSH_NODE_NAME", "Node-1")
	param("a node name with a shell's character", "KPSSH_NODE_NAME", "node;reboot")
	param("an address with a zone", "KPSSH_NODE_ADDRESS", "fe80::1%eth0")
	param("an address with a zero before", "KPSSH_NODE_ADDRESS", "10.0.0.011")
	param("a host that resolvers take for an address", "KPSSH_VAR_REGISTRY", "0x7f.1")
	param("a URI with a substitution", "KPSSH_PROVIDER_ID", "kpssh://$(id)")
	param("labels with a key twice", "KPSSH_NODE_LABELS", "a=b,a=c")
	param("a taint of an unknown effect", "KPSSH_TAINTS", "a=b:Evict")
	param("not of the enum", "KPSSH_VAR_CHANNEL", "nightly")
	param("a pattern matched in part", "KPSSH_VAR_MTU", "150;")
	param("longer than it may be", "KPSSH_VAR_MTU", "15000")
	param("text with a substitution", "KPSSH_VAR_NOTE", "$(id)")
	param("text with a quote", "KPSSH_VAR_NOTE", "it's")
	param("text with a line break", "KPSSH_VAR_NOTE", "a\nb")
	param("text with NUL", "KPSSH_VAR_NOTE", "a\x00b")
	param("text that is written from right to left", "KPSSH_VAR_NOTE", "a\u202eb")
	good := string(m.parametersFrame)
	for about, frame := range map[string]string{
		"white space":     strings.Replace(good, ",", ", ", 1),
		"a name twice":    strings.Replace(good, "{", `{"KPSSH_NODE_NAME":"x",`, 1),
		"a number":        strings.Replace(good, `"10.0.0.11"`, "10", 1),
		"null":            "null",
		"HTML escapes":    strings.Replace(good, "kpssh://", `kpssh:\u002f\u002f`, 1),
		"a list":          "[]",
		"data after them": good + "{}",
	} {
		m.frame(signing.ReasonMalformed, "B2", "parameters: "+about, []byte(frame))
	}
	m.orders(signing.ReasonParam, "A7", "parameters: not those of the order", m.signOrder(nil), map[string][]byte{"parameters.json": encode(m.t, map[string]string{})})
}

func (m *maker) beside() {
	m.orders(signing.ReasonNotAllowed, "A1", "script: not the one of the order", m.signOrder(nil), map[string][]byte{"script": []byte("echo other\n")})
	secrets := func(about string, values map[string]string) {
		m.orders(signing.ReasonSecretMismatch, "", "secrets: "+about, m.signOrder(nil), map[string][]byte{"secrets.json": encode(m.t, values)})
	}
	secrets("another value", map[string]string{"KPSSH_BOOTSTRAP_TOKEN": "fedcba.0123456789abcdef"})
	secrets("another name", map[string]string{"KPSSH_SECRET_X": token})
	secrets("none", map[string]string{})
	secrets("one too many", map[string]string{"KPSSH_BOOTSTRAP_TOKEN": token, "KPSSH_SECRET_X": "x"})
	commit := func(pairs ...string) []byte {
		return m.signOrder(func(o *signing.Order) {
			o.Secrets = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				o.Secrets[pairs[i]] = signing.Commitment(challenge, pairs[i], pairs[i+1])
			}
		})
	}
	for about, pairs := range map[string][]string{
		"a value that is not of its type": {"KPSSH_BOOTSTRAP_TOKEN", "hunter2"},
		"a name that is not in schema":    {"KPSSH_BOOTSTRAP_TOKEN", token, "KPSSH_SECRET_X", "x"},
		"a parameter among the secrets":   {"KPSSH_BOOTSTRAP_TOKEN", token, "KPSSH_NODE_NAME", "x"},
		"one is missing":                  {},
	} {
		values := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			values[pairs[i]] = pairs[i+1]
		}
		m.orders(signing.ReasonParam, "", "secrets: "+about, commit(pairs...), map[string][]byte{"secrets.json": encode(m.t, values)})
	}
}
