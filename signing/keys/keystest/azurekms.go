package keystest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
)

// AzureToken is what NewAzure's server takes.
const AzureToken = "test-access-token-of-azure"

// Azure is a server with the part of Azure Key Vault that signs
// (https://learn.microsoft.com/rest/api/keyvault/keys), and one that hands out managed identities' tokens for it.
type Azure struct {
	*Service
	// Environment lets clients log in as a managed identity.
	Environment map[string]string
	host        string
}

// NewAzure starts the two servers, the first one with one key.
func NewAzure(t T, certificates *Certificates, kind string) *Azure {
	t.Helper()
	a := &Azure{Service: newService(t, kind)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /keys/dispatch/{version}", a.read)
	mux.HandleFunc("POST /keys/dispatch/{version}/sign", a.signs)
	host, stop := certificates.serve(mux)
	a.host = host
	a.endWith(t, stop)
	a.Ref = "azurekms://" + a.host + "/dispatch/0123456789abcdef0123456789abcdef"
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		azureAnswer(w, http.StatusOK, map[string]any{
			"access_token": AzureToken, "expires_on": "4102444800", "resource": a.resource(), "token_type": "Bearer",
		})
	}))
	t.Cleanup(identity.Close)
	a.Environment = map[string]string{
		"AZURE_TOKEN_CREDENTIALS": "ManagedIdentityCredential", "IDENTITY_ENDPOINT": identity.URL, "IDENTITY_HEADER": "test",
	}
	return a
}

// resource is a domain that the server is in, as a vault is in vault.azure.net; clients insist on that.
func (a *Azure) resource() string {
	_, domain, _ := strings.Cut(a.host, ".")
	return "https://" + domain
}

func (a *Azure) admitted(w http.ResponseWriter, r *http.Request, signing bool) (Fault, bool) {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer authorization="https://login.microsoftonline.com/72f988bf-0000-4000-8000-000000000000", resource="`+a.resource()+`"`)
		azureError(w, http.StatusUnauthorized, "Unauthorized", "AKV10000: Request is missing a Bearer or PoP token.")
		return None, false
	}
	fault := a.enter(r.Context().Done(), signing)
	switch {
	case given != AzureToken, fault == Denied:
		azureError(w, http.StatusForbidden, "Forbidden", "Caller is not authorized to perform action on resource.")
	case fault == Hang:
	case fault == Down:
		azureError(w, http.StatusConflict, "Conflict", "Key is disabled.")
	case fault == Gossip:
		azureError(w, http.StatusBadRequest, "BadParameter", "Bearer "+given)
	case fault == Garbage:
		_, _ = io.WriteString(w, "<html>proxy</html>")
	case fault == Hollow:
		azureAnswer(w, http.StatusOK, map[string]any{})
	default:
		return fault, true
	}
	return fault, false
}

func (a *Azure) read(w http.ResponseWriter, r *http.Request) {
	if _, ok := a.admitted(w, r, false); !ok {
		return
	}
	key := map[string]any{"kid": "https://" + a.host + r.URL.Path, "key_ops": []string{"sign", "verify"}}
	encode := base64.RawURLEncoding.EncodeToString
	switch public := a.Key.Public().(type) {
	case *ecdsa.PublicKey:
		size := (public.Curve.Params().BitSize + 7) / 8
		point, err := public.Bytes()
		if err != nil {
			azureError(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
		key["kty"], key["crv"], key["x"], key["y"] = "EC", public.Curve.Params().Name, encode(point[1:1+size]), encode(point[1+size:])
	case *rsa.PublicKey:
		key["kty"], key["n"], key["e"] = "RSA", encode(public.N.Bytes()), encode(big.NewInt(int64(public.E)).Bytes())
	}
	azureAnswer(w, http.StatusOK, map[string]any{"key": key, "attributes": map[string]any{"enabled": true}})
}

func (a *Azure) signs(w http.ResponseWriter, r *http.Request) {
	fault, ok := a.admitted(w, r, true)
	if !ok {
		return
	}
	var request struct {
		Algorithm string `json:"alg"`
		Value     string `json:"value"`
	}
	err := json.NewDecoder(r.Body).Decode(&request)
	digest, decoding := base64.RawURLEncoding.DecodeString(request.Value)
	public, isEC := a.Key.Public().(*ecdsa.PublicKey)
	if err != nil || decoding != nil || request.Algorithm != "ES256" || !isEC || public.Curve != elliptic.P256() || len(digest) != crypto.SHA256.Size() {
		azureError(w, http.StatusBadRequest, "BadParameter", "Property has invalid value")
		return
	}
	der, err := a.sign(digest, crypto.SHA256, fault)
	if err != nil {
		azureError(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	// JSON Web Signatures have the two numbers side by side (RFC 7518, 3.4).
	var numbers struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &numbers); err != nil {
		azureError(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	raw := make([]byte, 64)
	numbers.R.FillBytes(raw[:32])
	numbers.S.FillBytes(raw[32:])
	azureAnswer(w, http.StatusOK, map[string]any{"kid": "https://" + a.host + r.URL.Path, "value": base64.RawURLEncoding.EncodeToString(raw)})
}

func azureAnswer(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func azureError(w http.ResponseWriter, status int, code, message string) {
	azureAnswer(w, status, map[string]any{"error": map[string]any{"code": code, "message": message}})
}
