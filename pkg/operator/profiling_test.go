package operator

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Core's flag was taken and did nothing: found when the bench wanted a profile of the controller.
func TestProfilesAreServedWhenAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		enabled bool
		want    int
	}{
		"asked for":     {true, http.StatusOK},
		"not asked for": {false, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux() // as the manager's metrics server has one
			for path, handler := range profiles(tc.enabled) {
				mux.Handle(path, handler)
			}
			for _, path := range []string{"heap", "goroutine", "cmdline", "symbol"} {
				answer := httptest.NewRecorder()
				mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/debug/pprof/"+path, nil))
				if answer.Code != tc.want {
					t.Errorf("%s: %d, want %d", path, answer.Code, tc.want)
				}
			}
		})
	}
}
