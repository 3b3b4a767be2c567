package netns

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestDialRefusesNames(t *testing.T) {
	for name, addr := range map[string]string{
		"a name": "localhost:1", "no port": "10.0.0.1", "nothing": "",
	} {
		t.Run(name, func(t *testing.T) {
			if conn, err := Dial(t.Context(), "absent", "tcp", addr); err == nil {
				t.Errorf("connected to %s", conn.RemoteAddr())
			}
		})
	}
}

func TestANamespaceThatIsGone(t *testing.T) {
	const gone = "kpssh-test-absent"
	if _, err := Dial(t.Context(), gone, "tcp", "127.0.0.1:1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dialling: %v", err)
	}
	if pids, err := Processes(gone); err != nil || len(pids) != 0 {
		t.Errorf("processes: %v, %v", pids, err)
	}
}

func TestEnterNamesTheNamespace(t *testing.T) {
	if got := strings.Join(Enter("x"), " "); got != "nsenter --net=/run/netns/x --" {
		t.Errorf("got %q", got)
	}
}
