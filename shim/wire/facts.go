package wire

import "time"

// LeftoverKinds are the kinds of leftovers: a kubelet's or a bootstrap credential, a mount of pods, a process of pods,
// of their containers or a kubelet, a network device or configuration of CNI, a unit that a boot would start, and
// what could not be looked at.
var LeftoverKinds = []string{"credential", "mount", "process", "device", "cni", "unit", "unknown"}

// HostFacts are what a probe reports of a host. They are not signed: hints for placement and
// preflight, to be checked against their schema and never to be trusted, templated or run.
type HostFacts struct {
	CPUs            int       `json:"cpus"`
	MemoryBytes     int64     `json:"memoryBytes"`
	SwapBytes       int64     `json:"swapBytes"`
	DiskFreeBytes   int64     `json:"diskFreeBytes"` // of the file system of /var/lib
	PageSize        int       `json:"pageSize"`
	Arch            string    `json:"arch"`            // of the shim, as Go names it
	KernelArch      string    `json:"kernelArch"`      // of the kernel, as uname names it
	KubeletState    string    `json:"kubeletState"`    // active, inactive, failed, …; absent when there is no unit; unknown
	ContainerdState string    `json:"containerdState"` // likewise
	Cgroup          string    `json:"cgroup"`          // v1, v2 or hybrid
	MemoryCgroup    bool      `json:"memoryCgroup"`    // the memory controller is usable
	Hostname        string    `json:"hostname"`
	MachineID       string    `json:"machineID"`
	BootID          string    `json:"bootID"`
	OS              string    `json:"os"` // PRETTY_NAME of os-release
	Kernel          string    `json:"kernel"`
	Addresses       []string  `json:"addresses"` // of all interfaces that are up, without loopback
	Clock           time.Time `json:"clock"`
	UptimeSeconds   int64     `json:"uptimeSeconds"`
	UserlandArch    string    `json:"userlandArch"`             // of the host's programs, as Go names it
	KubeletVersion  string    `json:"kubeletVersion,omitempty"` // where cgroup is not v2 and there is a kubelet
	// KubeletTolerates is what the host's own configuration lets its kubelet run with: TolerateSwap, TolerateCgroupV1.
	KubeletTolerates []string `json:"kubeletTolerates,omitempty"`
	// ControlPlane says that the host runs a control plane, or has the credentials of who runs one.
	ControlPlane bool `json:"controlPlane"`
	// Servers are the API servers, as HOST:PORT, that the host has credentials of a kubelet for.
	Servers []string `json:"servers,omitempty"`
	// NoExec are those of the directories that a node's programs run from whose file system does not let them, or does
	// not answer.
	NoExec []string `json:"noExec,omitempty"`
	// Leftovers is what is there of a membership that is over, each as "kind:detail", a kind being one of
	// [LeftoverKinds]; empty when there is nothing, nil when nobody looked, as while the host is claimed.
	Leftovers []string `json:"leftovers"`
}

// Values of HostFacts.KubeletTolerates.
const (
	TolerateSwap     = "swap"
	TolerateCgroupV1 = "cgroupV1"
)
