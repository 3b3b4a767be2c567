package keystest

import (
	"context"
	"crypto"
	"hash/crc32"
	"net"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const gcpKey = "projects/p/locations/europe-west3/keyRings/kpssh/cryptoKeys/dispatch"

// GCP is a server with the part of Google Cloud KMS that signs (https://cloud.google.com/kms/docs/reference/rpc).
type GCP struct {
	*Service
	// Address is where it listens, without TLS.
	Address string

	kmspb.UnimplementedKeyManagementServiceServer
	kind string
}

// NewGCP starts a server with one key.
func NewGCP(t T, kind string) *GCP {
	t.Helper()
	g := &GCP{Service: newService(t, kind), kind: kind}
	g.Ref = "gcpkms://" + gcpKey + "/cryptoKeyVersions/1"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.Address = listener.Addr().String()
	server := grpc.NewServer()
	kmspb.RegisterKeyManagementServiceServer(server, g)
	stopped := make(chan error, 1)
	go func() { stopped <- server.Serve(listener) }()
	g.endWith(t, func() {
		server.Stop()
		if err := <-stopped; err != nil {
			t.Errorf("serving Cloud KMS: %v", err)
		}
	})
	return g
}

func (g *GCP) admitted(ctx context.Context, signing bool) (Fault, error) {
	fault := g.enter(ctx.Done(), signing)
	switch fault {
	case Hang:
		return fault, ctx.Err()
	case Denied:
		return fault, status.Error(codes.PermissionDenied, "Permission 'cloudkms.cryptoKeyVersions.useToSign' denied on resource")
	case Down, Gossip: // its credentials never come as far as this server
		return fault, status.Error(codes.FailedPrecondition, "the key version is not enabled, current state is: DESTROYED.")
	}
	return fault, nil
}

// GetCryptoKey implements kmspb.KeyManagementServiceServer.
func (g *GCP) GetCryptoKey(ctx context.Context, request *kmspb.GetCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	if _, err := g.admitted(ctx, false); err != nil {
		return nil, err
	}
	return &kmspb.CryptoKey{Name: request.GetName(), Purpose: kmspb.CryptoKey_ASYMMETRIC_SIGN}, nil
}

// GetCryptoKeyVersion implements kmspb.KeyManagementServiceServer.
func (g *GCP) GetCryptoKeyVersion(_ context.Context, request *kmspb.GetCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	algorithm := map[string]kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm{
		P256: kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256, P384: kmspb.CryptoKeyVersion_EC_SIGN_P384_SHA384,
		RSA2048: kmspb.CryptoKeyVersion_RSA_SIGN_PKCS1_2048_SHA256, Ed25519: kmspb.CryptoKeyVersion_EC_SIGN_ED25519,
	}[g.kind]
	return &kmspb.CryptoKeyVersion{Name: request.GetName(), Algorithm: algorithm, State: kmspb.CryptoKeyVersion_ENABLED}, nil
}

// GetPublicKey implements kmspb.KeyManagementServiceServer.
func (g *GCP) GetPublicKey(context.Context, *kmspb.GetPublicKeyRequest) (*kmspb.PublicKey, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.fault {
	case Garbage:
		return &kmspb.PublicKey{Pem: "<html>proxy</html>"}, nil
	case Hollow:
		return &kmspb.PublicKey{}, nil
	}
	return &kmspb.PublicKey{Pem: g.publicPEM()}, nil
}

// AsymmetricSign implements kmspb.KeyManagementServiceServer.
func (g *GCP) AsymmetricSign(ctx context.Context, request *kmspb.AsymmetricSignRequest) (*kmspb.AsymmetricSignResponse, error) {
	fault, err := g.admitted(ctx, true)
	if err != nil {
		return nil, err
	}
	if fault == Garbage || fault == Hollow {
		return &kmspb.AsymmetricSignResponse{VerifiedDigestCrc32C: true}, nil
	}
	digest := request.GetDigest().GetSha256()
	if len(digest) != crypto.SHA256.Size() || request.GetDigestCrc32C().GetValue() != checksum(digest) {
		return nil, status.Error(codes.InvalidArgument, "the digest is not one of SHA-256")
	}
	signature, err := g.sign(digest, crypto.SHA256, fault)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &kmspb.AsymmetricSignResponse{
		Name: request.GetName(), Signature: signature, SignatureCrc32C: wrapperspb.Int64(checksum(signature)), VerifiedDigestCrc32C: true,
	}, nil
}

func checksum(b []byte) int64 {
	return int64(crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}
