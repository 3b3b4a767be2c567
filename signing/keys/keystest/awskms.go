package keystest

import (
	"crypto"
	"crypto/rsa"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// AWS credentials for the environment.
const (
	AWSAccessKeyID     = "AKIATESTTESTTESTTEST"
	AWSSecretAccessKey = "test/secret/access/key/of/aws/0000000000"
)

const awsKeyID = "1234abcd-12ab-34cd-56ef-1234567890ab"

// maxAWSMessage is what KMS signs in one piece when it is not a digest.
const maxAWSMessage = 4096

// AWS is a server with the part of AWS KMS that signs (https://docs.aws.amazon.com/kms/latest/APIReference).
type AWS struct {
	*Service
	kind string
}

// NewAWS starts a server with one key, reached over TLS with a certificate of Certificates.
func NewAWS(t T, certificates *Certificates, kind string) *AWS {
	t.Helper()
	a := &AWS{Service: newService(t, kind), kind: kind}
	host, stop := certificates.serve(http.HandlerFunc(a.serve))
	a.endWith(t, stop)
	a.Ref = "awskms://" + host + "/" + awsKeyID
	return a
}

func (a *AWS) serve(w http.ResponseWriter, r *http.Request) {
	operation := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "TrentService.")
	authorization := r.Header.Get("Authorization")
	var request struct {
		KeyID            string `json:"KeyId"`
		Message          []byte `json:"Message"`
		MessageType      string `json:"MessageType"`
		SigningAlgorithm string `json:"SigningAlgorithm"`
	}
	err := json.NewDecoder(r.Body).Decode(&request)
	fault := a.enter(r.Context().Done(), operation == "Sign")
	switch {
	case err != nil:
		awsError(w, "SerializationException", err.Error())
	case !strings.HasPrefix(authorization, "AWS4-HMAC-SHA256 Credential="+AWSAccessKeyID+"/"), fault == Denied:
		awsError(w, "AccessDeniedException", "User: arn:aws:iam::111122223333:user/test is not authorized to perform: kms:"+operation)
	case request.KeyID != awsKeyID:
		awsError(w, "NotFoundException", "Key 'arn:aws:kms:eu-central-1:111122223333:key/"+request.KeyID+"' does not exist")
	case fault == Hang:
	case fault == Down:
		awsError(w, "KMSInvalidStateException", "arn:aws:kms:eu-central-1:111122223333:key/"+awsKeyID+" is pending deletion.")
	case fault == Gossip:
		awsError(w, "KMSInternalException", "no such session: "+authorization+" of "+AWSSecretAccessKey)
	case fault == Garbage:
		_, _ = io.WriteString(w, "<html>proxy</html>")
	case fault == Hollow:
		a.hollow(w, operation)
	case operation == "GetPublicKey":
		awsAnswer(w, map[string]any{"KeyId": awsKeyID, "PublicKey": a.publicDER(), "KeyUsage": "SIGN_VERIFY", "SigningAlgorithms": a.algorithms()})
	case operation == "DescribeKey":
		awsAnswer(w, map[string]any{"KeyMetadata": map[string]any{
			"KeyId": awsKeyID, "Enabled": true, "KeyState": "Enabled", "KeyUsage": "SIGN_VERIFY", "SigningAlgorithms": a.algorithms(),
		}})
	case operation == "Sign":
		a.answerSign(w, request.Message, request.MessageType, request.SigningAlgorithm, fault)
	default:
		awsError(w, "UnknownOperationException", operation)
	}
}

// hollow answers as for a key that agrees on keys: one without an algorithm to sign with.
func (a *AWS) hollow(w http.ResponseWriter, operation string) {
	switch operation {
	case "GetPublicKey":
		awsAnswer(w, map[string]any{"KeyId": awsKeyID, "PublicKey": a.publicDER(), "KeyUsage": "KEY_AGREEMENT"})
	case "DescribeKey":
		awsAnswer(w, map[string]any{"KeyMetadata": map[string]any{"KeyId": awsKeyID, "KeyUsage": "KEY_AGREEMENT"}})
	default:
		awsAnswer(w, map[string]any{})
	}
}

func (a *AWS) algorithms() []string {
	switch a.kind {
	case P256:
		return []string{"ECDSA_SHA_256"}
	case P384:
		return []string{"ECDSA_SHA_384"}
	case Ed25519:
		return []string{"ED25519_SHA_512", "ED25519_PH_SHA_512"}
	}
	return []string{"RSASSA_PKCS1_V1_5_SHA_256"}
}

func (a *AWS) answerSign(w http.ResponseWriter, message []byte, messageType, algorithm string, fault Fault) {
	hash := crypto.SHA256
	_, isRSA := a.Key.(*rsa.PrivateKey)
	switch {
	case algorithm != a.algorithms()[0] || isRSA:
		awsError(w, "InvalidKeyUsageException", algorithm)
		return
	case messageType == "DIGEST" && len(message) != hash.Size():
		awsError(w, "ValidationException", "Digest is invalid length for algorithm "+algorithm)
		return
	case messageType != "DIGEST" && len(message) > maxAWSMessage:
		awsError(w, "ValidationException", "1 validation error detected: Value at 'message' failed to satisfy constraint: Member must have length less than or equal to 4096")
		return
	}
	digest := message
	if messageType != "DIGEST" {
		h := hash.New()
		h.Write(message)
		digest = h.Sum(nil)
	}
	signature, err := a.sign(digest, hash, fault)
	if err != nil {
		awsError(w, "KMSInternalException", err.Error())
		return
	}
	awsAnswer(w, map[string]any{"KeyId": awsKeyID, "Signature": signature, "SigningAlgorithm": algorithm})
}

func awsAnswer(w http.ResponseWriter, body map[string]any) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	_ = json.NewEncoder(w).Encode(body)
}

func awsError(w http.ResponseWriter, kind, message string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.Header().Set("X-Amzn-Errortype", kind)
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]any{"__type": kind, "message": message})
}
