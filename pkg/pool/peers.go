package pool

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// PeerKind is a property that no two machines may have in common.
type PeerKind string

// Kinds of such properties. Two hosts with one machine id, or with one shim's id, are clones.
const (
	PeerMachineID PeerKind = "machine"
	PeerHostID    PeerKind = "shim"
	PeerHostname  PeerKind = "hostname"
	// PeerAddress is the IP address of the node, PeerDial where it is dialled without jump hosts.
	PeerAddress PeerKind = "address"
	PeerDial    PeerKind = "dial"
)

type peerKey struct {
	kind  PeerKind
	value string
}

// peerKeys are the host's properties of these kinds. An empty one is none.
func peerKeys(host *v1beta1.SSHHost) []peerKey {
	keys := []peerKey{}
	add := func(kind PeerKind, value string) {
		if value != "" {
			keys = append(keys, peerKey{kind, strings.ToLower(value)})
		}
	}
	if id := host.Status.Identity; id != nil {
		add(PeerMachineID, id.MachineID)
		add(PeerHostname, id.Hostname)
	}
	if host.Spec.Shim != nil {
		add(PeerHostID, host.Spec.Shim.HostID)
	}
	if ip, err := netip.ParseAddr(host.AdvertisedAddress()); err == nil {
		add(PeerAddress, ip.Unmap().String())
	}
	if len(host.Spec.Jumps) == 0 && host.Spec.Address != "" {
		add(PeerDial, host.Spec.Address+" "+strconv.Itoa(host.SSHPort()))
	}
	return keys
}

func (i *Inventory) linkPeers(host *v1beta1.SSHHost) {
	for _, key := range peerKeys(host) {
		if i.peers[key] == nil {
			i.peers[key] = map[string]struct{}{}
		}
		i.peers[key][host.Name] = struct{}{}
	}
}

func (i *Inventory) unlinkPeers(host *v1beta1.SSHHost) {
	for _, key := range peerKeys(host) {
		delete(i.peers[key], host.Name)
		if len(i.peers[key]) == 0 {
			delete(i.peers, key)
		}
	}
}

// cloned says whether another host is the same machine, or a copy of it.
func (i *Inventory) cloned(host *v1beta1.SSHHost) bool {
	return slices.ContainsFunc(peerKeys(host), func(key peerKey) bool {
		return (key.kind == PeerMachineID || key.kind == PeerHostID) && len(i.peers[key]) > 1
	})
}

// Peers are the names of the other hosts, sorted, that have one of the host's properties of the kinds in common with it.
func (p *Pool) Peers(host *v1beta1.SSHHost, kinds ...PeerKind) []string {
	i := p.inventory
	i.mu.RLock()
	defer i.mu.RUnlock()
	var names []string
	for _, key := range peerKeys(host) {
		if !slices.Contains(kinds, key.kind) {
			continue
		}
		for name := range i.peers[key] {
			if name != host.Name {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
