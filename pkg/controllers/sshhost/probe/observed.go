package probe

import (
	"fmt"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// conditionHardened is False with the names of what the host's own doctor found.
const conditionHardened = "Hardened"

// memoryTolerance is the share of the stated memory that firmware and kernel may keep for themselves.
const memoryTolerance = 0.1

// What no machine has; facts are not signed.
const (
	maxCPUs   = 1 << 16
	maxMemory = 1 << 50
)

// architecture is the host's in Kubernetes' spelling; empty when it says nothing that can be so.
func architecture(arch, kernel string) string {
	switch arch {
	case "amd64", "arm64", "arm", "ppc64le", "s390x", "riscv64":
		return arch
	case "":
	default:
		return ""
	}
	switch kernel {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	default:
		return ""
	}
}

// observed is what the probe found out, as the pool records it; drift is what to say when the host has
// less than its spec states.
func (c *Controller) observed(host *v1beta1.SSHHost, probe *dispatch.Probe) (p pool.Probe, drift string) {
	facts := probe.Facts
	p = pool.Probe{Generation: host.Generation, Arch: architecture(facts.Arch, facts.KernelArch), HostKeyFingerprint: probe.HostKeyFingerprint}
	if facts.CPUs > 0 && facts.MemoryBytes > 0 && facts.CPUs <= maxCPUs && facts.MemoryBytes <= maxMemory {
		p.Capacity = corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(facts.CPUs), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(facts.MemoryBytes, resource.BinarySI),
		}
		drift = capacityDrift(host, p.Capacity)
		p.Conditions = append(p.Conditions, capacityCondition(drift))
	}
	p.Conditions = append(p.Conditions, cleanConditions(probe)...)
	p.Machine = c.machine(host, probe, drift)
	p.Conditions = append(p.Conditions, preflightCondition(p.Machine.Preflight))
	if probe.Hello != nil {
		p.Fence = probe.Hello.Claim.Fence
		p.Trust = c.trust(probe.Hello)
		p.Conditions = append(p.Conditions, hardenedCondition(probe.Hello.Findings), trustCondition(probe))
	}
	return p, drift
}

func capacityDrift(host *v1beta1.SSHHost, found corev1.ResourceList) string {
	var less []string
	if stated := host.Spec.Capacity[corev1.ResourceCPU]; found.Cpu().Cmp(stated) < 0 {
		less = append(less, fmt.Sprintf("cpu %s of %s", found.Cpu(), stated.String()))
	}
	if stated := host.Spec.Capacity[corev1.ResourceMemory]; float64(found.Memory().Value()) < (1-memoryTolerance)*float64(stated.Value()) {
		less = append(less, fmt.Sprintf("memory %s of %s", found.Memory(), stated.String()))
	}
	if len(less) == 0 {
		return ""
	}
	return "the host has less than its spec states: " + strings.Join(less, ", ")
}

func capacityCondition(drift string) status.Condition {
	if drift == "" {
		return status.Condition{Type: v1beta1.ConditionCapacityMatches, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonCapacityAsStated}
	}
	return status.Condition{Type: v1beta1.ConditionCapacityMatches, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonCapacityDrift, Message: drift}
}

func hardenedCondition(findings []string) status.Condition {
	if len(findings) == 0 {
		return status.Condition{Type: conditionHardened, Status: metav1.ConditionTrue, Reason: "NothingFound"}
	}
	return status.Condition{Type: conditionHardened, Status: metav1.ConditionFalse, Reason: "Findings", Message: strings.Join(findings, ", ")}
}

func drifted(host *v1beta1.SSHHost) bool {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionCapacityMatches {
			return c.Status == metav1.ConditionFalse
		}
	}
	return false
}

func readyCondition(host *v1beta1.SSHHost) status.Condition {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionReady {
			return c
		}
	}
	return status.Condition{}
}
