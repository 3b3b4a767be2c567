package instancetype

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// What admission fills in, for classes that never saw admission.
const (
	defaultPrice   = "0.02"
	defaultMaxPods = 110
)

// Capacity is what a host of the given capacity has under class: its own, and pods.
func Capacity(capacity corev1.ResourceList, class *v1beta1.SSHNodeClass) corev1.ResourceList {
	out := capacity.DeepCopy()
	pods := class.Spec.MaxPods
	if pods == 0 {
		pods = defaultMaxPods
	}
	out[corev1.ResourcePods] = *resource.NewQuantity(int64(pods), resource.DecimalSI)
	return out
}

// Allocatable is what of capacity pods may use under class.
func Allocatable(capacity corev1.ResourceList, class *v1beta1.SSHNodeClass) corev1.ResourceList {
	return resources.Subtract(capacity, overhead(class).Total())
}

func overhead(class *v1beta1.SSHNodeClass) *cloudprovider.InstanceTypeOverhead {
	reserved := class.Spec.KubeReserved
	if reserved == nil {
		reserved = corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("80m"),
			corev1.ResourceMemory: resource.MustParse("300Mi"),
		}
	}
	out := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if quantity, ok := reserved[name]; ok {
			out[name] = quantity
		}
	}
	return &cloudprovider.InstanceTypeOverhead{KubeReserved: out}
}

// pricePerCPU is the class's price of one vCPU for an hour.
func pricePerCPU(class *v1beta1.SSHNodeClass) (float64, error) {
	text := class.Spec.PricePerCPUHour
	if text == "" {
		text = defaultPrice
	}
	price, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("parsing pricePerCPUHour %q of SSHNodeClass %q: %w", text, class.Name, err)
	}
	return price, nil
}
