package keys

import (
	"context"
	"crypto"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	vault "github.com/hashicorp/vault/api"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms/aws"
	"github.com/sigstore/sigstore/pkg/signature/kms/azure"
	"github.com/sigstore/sigstore/pkg/signature/kms/gcp"
	"github.com/sigstore/sigstore/pkg/signature/kms/hashivault"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// client is what is used of sigstore's client for one key. It does not always heed the context
// that it is given.
type client interface {
	PublicKey(opts ...signature.PublicKeyOption) (crypto.PublicKey, error)
	SignMessage(message io.Reader, opts ...signature.SignOption) ([]byte, error)
}

// service is a kind of key service. Its client is loaded directly and never through sigstore's
// registry, which would run a program from PATH for a scheme that it does not know.
type service struct {
	scheme string
	// form is how references look, for whoever wrote another.
	form  string
	valid func(ref string) error
	// algorithms are those that the client signs with, which may be fewer than the service has.
	algorithms []string
	load       func(ctx context.Context, ref string) (client, error)
	// renews tells by its error whether a call may work with a client that has read its
	// credentials again; nil where clients do that by themselves.
	renews func(error) bool
}

// services is the closed list of schemes.
func services() []service {
	p256 := []string{signing.AlgorithmECDSAP256}
	return []service{
		{
			scheme: "awskms", form: "awskms:///KEY-ID, awskms:///alias/NAME or awskms:///ARN",
			valid: aws.ValidReference, algorithms: p256,
			load: func(ctx context.Context, ref string) (client, error) { return aws.LoadSignerVerifier(ctx, ref) },
		},
		{
			scheme: "gcpkms", form: "gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/N",
			valid: gcp.ValidReference, algorithms: p256,
			load: func(ctx context.Context, ref string) (client, error) {
				return gcp.LoadSignerVerifier(unbound(ctx), ref)
			},
		},
		{
			scheme: "azurekms", form: "azurekms://VAULT.vault.azure.net/KEY/VERSION",
			valid: azure.ValidReference, algorithms: p256,
			load: func(ctx context.Context, ref string) (client, error) {
				return azure.LoadSignerVerifier(unbound(ctx), ref)
			},
		},
		{
			scheme: "hashivault", form: "hashivault://KEY, with the server in VAULT_ADDR",
			valid: hashivault.ValidReference, algorithms: []string{signing.AlgorithmEd25519, signing.AlgorithmECDSAP256},
			load: loadVault, renews: vaultDenied,
		},
	}
}

// unbound is for clients that keep the context they are loaded with for as long as they live.
func unbound(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// loadVault hands the token over, as the client would else start the token helper that a file in
// the home directory names.
func loadVault(_ context.Context, ref string) (client, error) {
	token := vaultToken()
	if token == "" {
		return nil, errors.New("there is no Vault token: set VAULT_TOKEN, or have one in ~/.vault-token")
	}
	return hashivault.LoadSignerVerifier(ref, crypto.SHA256, options.WithRPCAuthOpts(options.RPCAuth{Token: token}))
}

// vaultToken reads the token as `vault` does: the environment, then the file that `vault login`
// writes, or a Vault agent that renews it.
func vaultToken() string {
	for _, name := range []string{"VAULT_TOKEN", "BAO_TOKEN"} {
		if token := os.Getenv(name); token != "" {
			return token
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	text, err := readBounded(filepath.Join(home, ".vault-token"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// vaultDenied: a token may have been renewed in its file since the client read it.
func vaultDenied(err error) bool {
	var answer *vault.ResponseError
	return errors.As(err, &answer) && answer.StatusCode == http.StatusForbidden
}

func schemes() []string {
	var all []string
	for _, s := range services() {
		all = append(all, s.scheme)
	}
	return all
}

// maxReference is more than any service's references need, in bytes.
const maxReference = 1024

// serviceOf finds the service of a reference, and refuses what none of them would take. The
// reference itself is not shown: what is no reference may be a pasted secret.
func serviceOf(ref string) (service, error) {
	scheme, rest, _ := strings.Cut(ref, "://")
	all := services()
	i := slices.IndexFunc(all, func(s service) bool { return s.scheme == scheme })
	if i < 0 {
		return service{}, refuse(ReasonUnknownScheme, "key scheme %.40q is not one of %s, nor is it a file", scheme, strings.Join(schemes(), ", "))
	}
	s := all[i]
	unprintable := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(ref) > maxReference || strings.ContainsFunc(rest, unprintable) || strings.ContainsAny(rest, "@?#") || s.valid(ref) != nil {
		return service{}, refuse(ReasonKeyReference, "a %s reference looks like %s, and holds no credentials", scheme, s.form)
	}
	return s, nil
}
