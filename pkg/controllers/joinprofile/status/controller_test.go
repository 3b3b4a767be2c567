package status_test

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/joinprofile/status"
)

func TestAJoinProfileSaysWhetherItCanBeUsed(t *testing.T) {
	tests := map[string]struct {
		change     func(*v1beta1.SSHJoinProfile)
		wantReason string
		says       string
	}{
		"it can": {func(*v1beta1.SSHJoinProfile) {}, v1beta1.ReasonValid, ""},
		"it declares its vars": {func(p *v1beta1.SSHJoinProfile) {
			p.Spec.Parameters = &v1beta1.Parameters{Join: []v1beta1.Parameter{{Name: "KPSSH_VAR_A"}}}
		}, v1beta1.ReasonValid, ""},
		"a script is for another interpreter": {func(p *v1beta1.SSHJoinProfile) { p.Spec.Scripts.Leave = "#!/usr/bin/perl\n" }, v1beta1.ReasonProfileInvalid, "leave"},
		"a script has the wrong line ends":    {func(p *v1beta1.SSHJoinProfile) { p.Spec.Scripts.Join = "echo\r\n" }, v1beta1.ReasonProfileInvalid, "join"},
		"a template does not parse":           {func(p *v1beta1.SSHJoinProfile) { p.Spec.Scripts.Join = "x={{.Vars.a\n" }, v1beta1.ReasonProfileInvalid, "join"},
		"a template needs a var":              {func(p *v1beta1.SSHJoinProfile) { p.Spec.Scripts.Join = "x={{.Vars.a}}\n" }, v1beta1.ReasonValid, ""},
		"uninstall is broken":                 {func(p *v1beta1.SSHJoinProfile) { p.Spec.Scripts.Uninstall = "\x00" }, v1beta1.ReasonProfileInvalid, "uninstall"},
		"a secret is not declared as one": {func(p *v1beta1.SSHJoinProfile) {
			p.Spec.Parameters = &v1beta1.Parameters{Install: []v1beta1.Parameter{{Name: "KPSSH_SECRET_A"}}}
		}, v1beta1.ReasonProfileInvalid, "KPSSH_SECRET_A"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			env := controllertest.New(t, controllertest.Profile(tt.change))
			prof := &v1beta1.SSHJoinProfile{}
			for range 2 { // the second finds nothing to write
				if err := env.Client.Get(context.Background(), client.ObjectKey{Name: controllertest.ProfileName}, prof); err != nil {
					t.Fatal(err)
				}
				if _, err := status.NewController(env.Client, env.Clock).Reconcile(context.Background(), prof); err != nil {
					t.Fatal(err)
				}
			}
			c := prof.StatusConditions().Get(v1beta1.ConditionReady)
			if c.Reason != tt.wantReason || c.IsTrue() != (tt.wantReason == v1beta1.ReasonValid) || !strings.Contains(c.Message, tt.says) {
				t.Errorf("condition = %+v", c)
			}
		})
	}
}
