package keystest

import (
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
)

// VaultToken is what NewVault's server takes.
const VaultToken = "hvs.CAESIJ-test-token-of-a-vault"

// Vault is a server with the part of Vault's transit engine that signs
// (https://developer.hashicorp.com/vault/api-docs/secret/transit).
type Vault struct {
	*Service
	// URL is the value of VAULT_ADDR.
	URL   string
	token string
}

// NewVault starts a server with one key.
func NewVault(t T, kind string) *Vault {
	t.Helper()
	v := &Vault{Service: newService(t, kind), token: VaultToken}
	v.Ref = "hashivault://kpssh-" + kind
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/transit/keys/{key}", func(w http.ResponseWriter, r *http.Request) { v.read(w, r, kind) })
	mux.HandleFunc("PUT /v1/transit/sign/{key}", v.signs)
	mux.HandleFunc("PUT /v1/transit/sign/{key}/{hash}", v.signs)
	server := httptest.NewServer(mux)
	v.endWith(t, server.Close)
	v.URL = server.URL
	return v
}

// SetToken changes the token that is taken.
func (v *Vault) SetToken(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.token = token
}

// admitted answers what goes wrong before the engine is reached.
func (v *Vault) admitted(w http.ResponseWriter, r *http.Request, signing bool) (Fault, bool) {
	fault := v.enter(r.Context().Done(), signing)
	v.mu.Lock()
	token := v.token
	v.mu.Unlock()
	given := r.Header.Get("X-Vault-Token")
	switch {
	case given != token, fault == Denied:
		vaultErrors(w, http.StatusForbidden, "1 error occurred:\n\t* permission denied\n\n")
	case r.PathValue("key") != strings.TrimPrefix(v.Ref, "hashivault://"):
		vaultErrors(w, http.StatusNotFound)
	case fault == Hang:
	case fault == Down:
		vaultErrors(w, http.StatusServiceUnavailable, "Vault is sealed")
	case fault == Gossip:
		vaultErrors(w, http.StatusInternalServerError, "no backend for "+given)
	case fault == Garbage:
		_, _ = io.WriteString(w, "<html>proxy</html>")
	case fault == Hollow:
		w.WriteHeader(http.StatusNoContent)
	default:
		return fault, true
	}
	return fault, false
}

func (v *Vault) read(w http.ResponseWriter, r *http.Request, kind string) {
	if _, ok := v.admitted(w, r, false); !ok {
		return
	}
	// As path_keys.go of the engine has it: a curve's name, or "ed25519" with the raw key.
	version := map[string]any{"creation_time": "2026-05-01T12:00:00Z", "name": kind, "public_key": v.publicPEM()}
	switch kind {
	case P256:
		version["name"] = "P-256"
	case P384:
		version["name"] = "P-384"
	case Ed25519:
		version["public_key"] = base64.StdEncoding.EncodeToString(v.Key.Public().(ed25519.PublicKey))
	}
	vaultData(w, map[string]any{
		"name": r.PathValue("key"), "type": kind, "supports_signing": true, "latest_version": 1, "min_available_version": 0,
		"keys": map[string]any{"1": version},
	})
}

func (v *Vault) signs(w http.ResponseWriter, r *http.Request) {
	fault, ok := v.admitted(w, r, true)
	if !ok {
		return
	}
	var request struct {
		Input     string `json:"input"`
		Prehashed bool   `json:"prehashed"`
	}
	err := json.NewDecoder(r.Body).Decode(&request)
	if err != nil {
		vaultErrors(w, http.StatusBadRequest, err.Error())
		return
	}
	input, err := base64.StdEncoding.DecodeString(request.Input)
	if err != nil {
		vaultErrors(w, http.StatusBadRequest, "unable to decode input as base64")
		return
	}
	hash := crypto.Hash(0)
	switch _, isEd25519 := v.Key.Public().(ed25519.PublicKey); {
	case isEd25519 && request.Prehashed:
		vaultErrors(w, http.StatusBadRequest, "ed25519 does not sign what is hashed already")
		return
	case isEd25519:
	case r.PathValue("hash") != "sha2-256":
		vaultErrors(w, http.StatusBadRequest, "this server knows sha2-256 only")
		return
	default:
		hash = crypto.SHA256
		if !request.Prehashed {
			digest := hash.New()
			digest.Write(input)
			input = digest.Sum(nil)
		}
	}
	signature, err := v.sign(input, hash, fault)
	if err != nil {
		vaultErrors(w, http.StatusBadRequest, err.Error())
		return
	}
	vaultData(w, map[string]any{"signature": "vault:v1:" + base64.StdEncoding.EncodeToString(signature), "key_version": 1})
}

func vaultData(w http.ResponseWriter, data map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"request_id": "5d2c5d1e-0000-4000-8000-000000000000", "lease_id": "", "renewable": false, "lease_duration": 0,
		"data": data, "wrap_info": nil, "warnings": nil, "auth": nil,
	})
}

func vaultErrors(w http.ResponseWriter, status int, errs ...string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if errs == nil {
		errs = []string{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": errs})
}
