package dispatch_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// Field report R9 (gopher PR#90 and others): a host is not to blame for what its jump host refuses.
func TestR9WhatAJumpHostRefusesIsNoFaultOfTheHost(t *testing.T) {
	for name, test := range map[string]struct {
		spoil         func(*testing.T, *remotetest.Server)
		class         dispatch.Class
		configuration bool
		says          string
	}{
		"it takes no key":       {func(_ *testing.T, s *remotetest.Server) { s.SetFault(remotetest.FaultRejectKeys) }, dispatch.AuthRejected, true, "jump host 1"},
		"it is another machine": {func(t *testing.T, s *remotetest.Server) { s.SetHostKeys(remotetest.Key(t)) }, dispatch.HostKeyMismatch, true, "put that into knownHost"},
		"it forwards nothing":   {func(_ *testing.T, s *remotetest.Server) { s.SetFault(remotetest.FaultRefuseForwarding) }, dispatch.Unreachable, true, "jump refuses forwarding"},
		"it is down":            {func(_ *testing.T, s *remotetest.Server) { s.Close() }, dispatch.Unreachable, false, "jump host 1"},
		"all is well with it":   {func(*testing.T, *remotetest.Server) {}, "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			world := dispatchtest.NewWorld(t)
			host := world.NewHost("host-a").Dispatch()
			jump := remotetest.New(t, remotetest.Config{Forward: func(to string) (string, error) { return to, nil }})
			via := jump.Target(host.Target.Keys...)
			host.Target.Via = &via
			test.spoil(t, jump)
			_, err := world.Dispatcher().Probe(t.Context(), host)
			if test.class == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *dispatch.Error
			if !errors.As(err, &e) || e.Class != test.class || e.IsConfiguration() != test.configuration || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}
