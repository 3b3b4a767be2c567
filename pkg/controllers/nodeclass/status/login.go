package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	opstatus "github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
)

const (
	// DefaultSlowLogin is from where on people are told: UseDNS and GSSAPI make a login take 20 s and more.
	DefaultSlowLogin = 10 * time.Second
	// maxNamed is how many hosts a condition names.
	maxNamed = 20
)

// checkSSHKeys asks for one host that can be logged in to, by its Secret and its jump hosts': a host whose own is
// wrong is that host's trouble, a class without any cannot be used.
func (c *Controller) checkSSHKeys(ctx context.Context, v *view) (*problem, error) {
	var first *problem
	asked := map[string]*problem{}
	for _, host := range v.hosts {
		p, err := c.checkLogin(ctx, v, host, asked)
		if p == nil || err != nil {
			return nil, err
		}
		if first == nil {
			first = p
		}
	}
	return first, nil
}

// checkLogin asks for the Secrets of one host, and remembers what it found out.
func (c *Controller) checkLogin(ctx context.Context, v *view, host *v1beta1.SSHHost, asked map[string]*problem) (*problem, error) {
	for i, name := range secretsOf(host) {
		jump := i > 0 // which is never pinned by first use
		key := fmt.Sprint(jump, " ", name)
		p, ok := asked[key]
		if !ok {
			login, err := c.Access.Login(ctx, name)
			if p, err = c.unusable(name, err); err != nil {
				return nil, err
			}
			if p == nil && jump && !login.Pinned {
				p = found(hostaccess.ReasonHostKeyUnpinned, "no host of the class can be logged in to: Secret %s/%s of a jump host has no %s", c.Namespace, name, hostaccess.KeyKnownHost)
			}
			v.expires(login)
			asked[key] = p
		}
		if p != nil {
			return p, nil
		}
	}
	return nil, nil
}

// secretsOf are the Secrets that a login on the host takes, its own first.
func secretsOf(host *v1beta1.SSHHost) []string {
	names := []string{host.Spec.SSHKeySecretRef.Name}
	for i := range host.Spec.Jumps {
		names = append(names, host.Spec.Jumps[i].SSHKeySecretRef.Name)
	}
	return names
}

// unusable makes a problem of what is wrong with a Secret.
func (c *Controller) unusable(name string, err error) (*problem, error) {
	var bad *hostaccess.LoginError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &bad):
		return nil, err
	case bad.Reason == v1beta1.ReasonSSHKeyMissing:
		return found(v1beta1.ReasonSSHKeyNotFound, "no host of the class has an SSH key: Secret %s/%s does not exist or has no privateKey", c.Namespace, name), nil
	}
	return found(bad.Reason, "no host of the class can be logged in to: %s", bad.Detail), nil
}

// expires notes that the class is to be looked at again when a certificate has run out.
func (v *view) expires(login *hostaccess.Login) {
	if login == nil {
		return
	}
	if at := login.Expires(); !at.IsZero() && (v.recheck.IsZero() || at.Before(v.recheck)) {
		v.recheck = at
	}
}

// describeLogins says on the class which of its hosts keep a retiring key alive, and which are slow to log in to. That
// is a memory of this process: hosts that it has not logged in to are named as such.
func (c *Controller) describeLogins(ctx context.Context, v *view) error {
	if len(v.hosts) == 0 { // none, or not asked for: what was said stays
		return nil
	}
	var retiring, unseen, slow []string
	rotating := false
	for _, host := range v.hosts {
		last, seen := c.Logins.Of(host.Name)
		if seen && last.Took >= c.SlowLogin {
			slow = append(slow, fmt.Sprintf("%s (%.0f s)", host.Name, last.Took.Seconds()))
		}
		login, err := c.Access.Login(ctx, host.Spec.SSHKeySecretRef.Name)
		var bad *hostaccess.LoginError
		if err != nil && !errors.As(err, &bad) {
			return err
		}
		if err != nil || login.Retiring == "" {
			continue
		}
		rotating = true
		switch {
		case !seen:
			unseen = append(unseen, host.Name)
		case last.Key == login.Retiring:
			retiring = append(retiring, host.Name)
		}
	}
	v.sayRotation(rotating, retiring, unseen)
	if len(slow) == 0 {
		v.unsay(v1beta1.ConditionSlowLogin)
		return nil
	}
	v.say(v1beta1.ConditionSlowLogin, metav1.ConditionTrue, v1beta1.ReasonSlowLogin,
		"logging in takes long: "+named(slow)+"; UseDNS no and GSSAPIAuthentication no in sshd_config mend most of it")
	return nil
}

func (v *view) sayRotation(rotating bool, retiring, unseen []string) {
	switch {
	case len(retiring) > 0:
		text := "these hosts take the retiring login key only: " + named(retiring)
		if len(unseen) > 0 {
			text += "; not known yet: " + named(unseen)
		}
		v.say(v1beta1.ConditionLoginKeyCurrent, metav1.ConditionFalse, v1beta1.ReasonRetiringKeyInUse, text)
	case len(unseen) > 0:
		v.say(v1beta1.ConditionLoginKeyCurrent, metav1.ConditionUnknown, v1beta1.ReasonHostsNotSeen, "not logged in to since the controller started: "+named(unseen))
	case rotating:
		v.say(v1beta1.ConditionLoginKeyCurrent, metav1.ConditionTrue, v1beta1.ReasonKeyRotated, "every host takes the new login key: "+hostaccess.KeyRetiring+" can be taken out of the Secrets")
	default:
		v.unsay(v1beta1.ConditionLoginKeyCurrent)
	}
}

// named lists the first hosts.
func named(hosts []string) string {
	slices.Sort(hosts)
	if more := len(hosts) - maxNamed; more > 0 {
		return strings.Join(hosts[:maxNamed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(hosts, ", ")
}

// say sets a condition beside Ready.
func (v *view) say(kind string, status metav1.ConditionStatus, reason, message string) {
	next := opstatus.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: v.class.Generation, LastTransitionTime: metav1.NewTime(v.now),
	}
	if !v1beta1.ReplaceCondition(v.class.Status.Conditions, next) {
		v.class.Status.Conditions = append([]opstatus.Condition{next}, v.class.Status.Conditions...)
	}
}

func (v *view) unsay(kind string) {
	v.class.Status.Conditions = slices.DeleteFunc(v.class.Status.Conditions, func(c opstatus.Condition) bool { return c.Type == kind })
}
