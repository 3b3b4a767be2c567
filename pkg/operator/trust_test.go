package operator

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

var trustName = types.NamespacedName{Namespace: "kpssh-controller", Name: "kpssh-trust"}

func TestTrustReadsWhatKpsshWrites(t *testing.T) {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: trustName.Namespace, Name: trustName.Name},
		Data:       map[string]string{"root.1.json": "one", "root.10.json": "ten", "root.01.json": "no", "root.x.json": "no", "root.0.json": "no", "README": "no"},
		BinaryData: map[string][]byte{"root.2.json": []byte("two"), "allowlist.json": []byte("list")},
	}
	roots, list, err := newTrust(fake.NewClientBuilder().WithObjects(object).Build(), trustName).Documents()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int64][]byte{1: []byte("one"), 2: []byte("two"), 10: []byte("ten")}, roots); diff != "" || string(list) != "list" {
		t.Errorf("allowlist %q, %s", list, diff)
	}
	if _, _, err := newTrust(fake.NewClientBuilder().Build(), trustName).Documents(); err == nil || !strings.Contains(err.Error(), "kpssh-trust") {
		t.Errorf("without the ConfigMap: %v", err)
	}
}

func TestANewDispatchKeyCountsAtOnce(t *testing.T) {
	ctx := context.Background()
	c := fake.NewClientBuilder().Build()
	key := &secretKey{reader: c, name: types.NamespacedName{Namespace: "n", Name: "kpssh-dispatch-key"}}
	if _, err := key.Sign(ctx, []byte("x")); err == nil || key.Public().Public != nil {
		t.Errorf("signed without a key, %v", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "kpssh-dispatch-key"}}
	var seen []string
	for i := range 2 {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		text, err := keys.Encode(private, nil)
		if err != nil {
			t.Fatal(err)
		}
		secret.Data = map[string][]byte{keys.SecretKey: text}
		if i == 0 {
			err = c.Create(ctx, secret)
		} else {
			err = c.Update(ctx, secret)
		}
		if err != nil {
			t.Fatal(err)
		}
		signature, err := key.Sign(ctx, []byte("x"))
		if err != nil || !key.Public().Verify([]byte("x"), signature) {
			t.Fatalf("key %d: %v", i, err)
		}
		want, err := signing.KeyOf(private.Public())
		if err != nil || !key.Public().Equal(want) {
			t.Errorf("key %d is not the Secret's: %v", i, err)
		}
		seen = append(seen, key.Public().ID())
	}
	if seen[0] == seen[1] {
		t.Error("the second key does not count")
	}
	secret.Data = map[string][]byte{keys.SecretKey: []byte("nonsense secret text")}
	if err := c.Update(ctx, secret); err != nil {
		t.Fatal(err)
	}
	if _, err := key.Sign(ctx, []byte("x")); err == nil || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("with nonsense: %v", err)
	}
}

// The indexes are core's, copied: this fails when another version of core sets up others.
func TestIndexesAreThoseOfCore(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter/pkg/operator").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), "operator.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]int{}
	ast.Inspect(source, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if name, ok := call.Fun.(*ast.SelectorExpr); ok && name.Sel.Name == "IndexField" {
			kind := call.Args[1].(*ast.UnaryExpr).X.(*ast.CompositeLit).Type.(*ast.SelectorExpr).Sel.Name
			field, err := strconv.Unquote(call.Args[2].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			theirs[kind+" "+field]++
		}
		return true
	})
	ours := map[string]int{}
	for _, index := range coreIndexes() {
		ours[strings.TrimPrefix(fmt.Sprintf("%T", index.object), "*v1.")+" "+index.field]++
	}
	if len(theirs) == 0 {
		t.Error("found none in core's source")
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(theirs)), slices.Sorted(maps.Keys(ours))); diff != "" {
		t.Error(diff)
	}
}
