package instancetype

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sort"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// DefaultZone is the zone of a host that carries no zone label.
const DefaultZone = "pool"

// Zone is the topology zone of a host's node.
func Zone(host *v1beta1.SSHHost) string {
	if zone := host.Labels[corev1.LabelTopologyZone]; zone != "" {
		return zone
	}
	return DefaultZone
}

// Shape is the exact name of what a host is; that of a host without an observed architecture is nobody's name.
func Shape(host *v1beta1.SSHHost) string {
	return exactName(host.Class(), host.Status.ObservedArch, PageSize(host), host.Spec.Capacity)
}

// usualPageSize is that of a host of which nothing else is known, in bytes.
const usualPageSize = 4096

// PageSize is the page size of the host's kernel in bytes: some programs are built for one alone.
func PageSize(host *v1beta1.SSHHost) int64 {
	if size := host.Status.ObservedPageSize; size > 0 {
		return size
	}
	return usualPageSize
}

const (
	maxLabelValue = 63
	hashDigits    = 6
)

// exactName is readable in its first part and unique by the hash in its last, which is over all of it.
func exactName(class, arch string, pageSize int64, capacity corev1.ResourceList) string {
	names := make([]string, 0, len(capacity))
	for name := range capacity {
		names = append(names, string(name))
	}
	sort.Strings(names)
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00", class, arch)
	for _, name := range names {
		quantity := capacity[corev1.ResourceName(name)]
		// Equal quantities have many spellings; AsDec is exact for all of them.
		fmt.Fprintf(h, "%s=%s\x00", name, canonical(quantity.AsDec().String()))
	}
	if pageSize != usualPageSize {
		arch += fmt.Sprintf("-%dk", pageSize>>10)
		fmt.Fprintf(h, "page-size=%d\x00", pageSize)
	}
	suffix := fmt.Sprintf("-%s-%s-%s-%s", cores(capacity), memory(capacity), arch, hex.EncodeToString(h.Sum(nil))[:hashDigits])
	return class[:min(len(class), maxLabelValue-len(suffix))] + suffix
}

// canonical drops the zeros that a decimal keeps of the spelling that it was parsed from.
func canonical(decimal string) string {
	for i := range decimal {
		if decimal[i] == '.' {
			end := len(decimal)
			for decimal[end-1] == '0' {
				end--
			}
			if end == i+1 {
				end = i
			}
			return decimal[:end]
		}
	}
	return decimal
}

func cores(capacity corev1.ResourceList) string {
	milli := capacity.Cpu().MilliValue()
	if milli%1000 == 0 {
		return strconv.FormatInt(milli/1000, 10) + "c"
	}
	return strconv.FormatInt(milli, 10) + "mc"
}

func memory(capacity corev1.ResourceList) string {
	bytes := capacity.Memory().Value()
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if bytes%unit.size == 0 {
			return strconv.FormatInt(bytes/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}
