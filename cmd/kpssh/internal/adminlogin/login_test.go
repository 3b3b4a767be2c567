package adminlogin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	cases := map[string]struct {
		text string
		want Login
		bad  bool
	}{
		"a user and a name":             {text: "root@host-a", want: Login{User: "root", Host: "host-a"}},
		"a port":                        {text: "pi@10.0.0.11:2222", want: Login{User: "pi", Host: "10.0.0.11", Port: 2222}},
		"an IPv6 address":               {text: "root@fd00::1", want: Login{User: "root", Host: "fd00::1"}},
		"an IPv6 address in brackets":   {text: "root@[fd00::1]", want: Login{User: "root", Host: "fd00::1"}},
		"an IPv6 address with a port":   {text: "root@[fd00::1]:2222", want: Login{User: "root", Host: "fd00::1", Port: 2222}},
		"a user with an at sign":        {text: "me@example.org@host", want: Login{User: "me@example.org", Host: "host"}},
		"no user":                       {text: "host", bad: true},
		"an empty user":                 {text: "@host", bad: true},
		"an empty host":                 {text: "root@", bad: true},
		"a host that is an ssh option":  {text: "root@-oProxyCommand=id", bad: true},
		"a user that is an ssh option":  {text: "-oProxyCommand=id@host", bad: true},
		"a space":                       {text: "root@host id", bad: true},
		"a quote":                       {text: "root@ho'st", bad: true},
		"a port that is none":           {text: "root@host:ssh", bad: true},
		"a port out of range":           {text: "root@host:65536", bad: true},
		"brackets that are not closed":  {text: "root@[fd00::1", bad: true},
		"a port behind an open bracket": {text: "root@[fd00::1:22", bad: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(c.text)
			if (err != nil) != c.bad {
				t.Fatalf("error %v, want one: %v", err, c.bad)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
