package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// coreIndex is a field that core's controllers look objects up by.
type coreIndex struct {
	object client.Object
	field  string
	value  func(client.Object) string
}

// coreIndexes are those that core's NewOperator sets up. A test compares them with its source.
func coreIndexes() []coreIndex {
	claimRef := func(o client.Object) karpv1.NodeClassReference {
		if ref := o.(*karpv1.NodeClaim).Spec.NodeClassRef; ref != nil {
			return *ref
		}
		return karpv1.NodeClassReference{}
	}
	poolRef := func(o client.Object) karpv1.NodeClassReference {
		if ref := o.(*karpv1.NodePool).Spec.Template.Spec.NodeClassRef; ref != nil {
			return *ref
		}
		return karpv1.NodeClassReference{}
	}
	return []coreIndex{
		{&corev1.Pod{}, "spec.nodeName", func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
		{&corev1.Node{}, "spec.providerID", func(o client.Object) string { return o.(*corev1.Node).Spec.ProviderID }},
		{&storagev1.VolumeAttachment{}, "spec.nodeName", func(o client.Object) string { return o.(*storagev1.VolumeAttachment).Spec.NodeName }},
		{&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) string { return o.(*karpv1.NodeClaim).Status.ProviderID }},
		{&karpv1.NodeClaim{}, "spec.nodeClassRef.group", func(o client.Object) string { return claimRef(o).Group }},
		{&karpv1.NodeClaim{}, "spec.nodeClassRef.kind", func(o client.Object) string { return claimRef(o).Kind }},
		{&karpv1.NodeClaim{}, "spec.nodeClassRef.name", func(o client.Object) string { return claimRef(o).Name }},
		{&karpv1.NodePool{}, "spec.template.spec.nodeClassRef.group", func(o client.Object) string { return poolRef(o).Group }},
		{&karpv1.NodePool{}, "spec.template.spec.nodeClassRef.kind", func(o client.Object) string { return poolRef(o).Kind }},
		{&karpv1.NodePool{}, "spec.template.spec.nodeClassRef.name", func(o client.Object) string { return poolRef(o).Name }},
	}
}

func indexCore(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range coreIndexes() {
		values := func(o client.Object) []string { return []string{index.value(o)} }
		if err := indexer.IndexField(ctx, index.object, index.field, values); err != nil {
			return fmt.Errorf("indexing %T by %s: %w", index.object, index.field, err)
		}
	}
	return nil
}
