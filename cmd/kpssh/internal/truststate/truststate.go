// Package truststate says how far the signed documents have come: from the folder to the cluster, and from there to
// each host. What still waits has a name of a closed list, for scripts.
package truststate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// What can wait of a host.
const (
	// NeverSeen: no hello of the host has verified yet.
	NeverSeen = "never-seen"
	// RootBehind and AllowlistBehind: it has a document of another version, for roots an older one.
	RootBehind      = "root-behind"
	AllowlistBehind = "allowlist-behind"
	// AllowlistForeign: it has another allowlist of the same version, and takes none but of a later one.
	AllowlistForeign = "allowlist-foreign"
	// RootAhead: it has a newer root than there is here.
	RootAhead = "root-ahead"
	// TrustForeign: it believes a root document of the same version that is another one, or knows none of our keys.
	TrustForeign = "trust-foreign"
	// ShimTooOld: its shim is below the allowlist's minShim, and refuses every order.
	ShimTooOld = "shim-too-old"
)

// What can wait of the documents.
const (
	RootUnpublished      = "root-unpublished"      // the cluster has an older root than the folder
	AllowlistUnpublished = "allowlist-unpublished" // the cluster has another allowlist than the folder
	AllowlistForked      = "allowlist-forked"      // folder and cluster have different allowlists of one version
	FolderBehind         = "folder-behind"         // the cluster has a newer root than the folder
	RootForked           = "root-forked"           // folder and cluster have different roots of one version
	NoAllowlist          = "no-allowlist"          // nothing was signed yet
	RootExpired          = "root-expired"
	AllowlistExpired     = "allowlist-expired"
	// DispatchKeyUnlisted: the controller signs with a key that the newest root does not list.
	DispatchKeyUnlisted = "dispatch-key-unlisted"
)

// Document is a root or an allowlist.
type Document struct {
	Version  int64     `json:"version"`
	Expires  time.Time `json:"expires"`
	DaysLeft int       `json:"daysLeft"`
	// Published is the version that the cluster has, 0 for none.
	Published int64 `json:"published"`
}

// Host is what a host believes, by its own word, and what it waits for.
type Host struct {
	Name             string     `json:"name"`
	State            string     `json:"state"`
	RootVersion      int64      `json:"rootVersion"`
	AllowlistVersion int64      `json:"allowlistVersion"`
	ShimVersion      string     `json:"shimVersion"`
	Seen             *time.Time `json:"seen"`
	Findings         []string   `json:"findings"`
	Waiting          []string   `json:"waiting"`
	// Reason is why a host that was reached did not take the documents.
	Reason string `json:"reason,omitempty"`
}

// Report is how far the documents have come.
type Report struct {
	Root      Document  `json:"root"`
	Allowlist *Document `json:"allowlist"`
	// Waiting is what waits of the documents; each host has its own.
	Waiting []string `json:"waiting"`
	Hosts   []Host   `json:"hosts"`
}

// Settled says whether nothing waits anywhere.
func (r *Report) Settled() bool {
	return len(r.Waiting) == 0 && !slices.ContainsFunc(r.Hosts, func(h Host) bool { return len(h.Waiting) > 0 })
}

// Published opens the documents that a cluster has; nil when it has none.
func Published(pool *cluster.Pool) (*documents.Set, error) {
	var chain [][]byte
	for n := 1; pool.Documents[manifest.RootEntry(n)] != ""; n++ {
		chain = append(chain, []byte(pool.Documents[manifest.RootEntry(n)]))
	}
	if len(chain) == 0 {
		return nil, nil
	}
	set, err := documents.Open(chain, []byte(pool.Documents[manifest.AllowlistEntry]))
	if err != nil {
		return nil, fmt.Errorf("in the cluster's ConfigMap %s: %w", manifest.TrustName, err)
	}
	return set, nil
}

// Forked is the first version of which folder and cluster have different root documents, 0 when one chain is the
// beginning of the other. Versions alone do not tell: an old backup makes the next one anew.
func Forked(folder, published *documents.Set) (int64, error) {
	if folder == nil || published == nil {
		return 0, nil
	}
	ours, err := folder.RootDigests()
	if err != nil {
		return 0, err
	}
	theirs, err := published.RootDigests()
	if err != nil {
		return 0, err
	}
	for i := range min(len(ours), len(theirs)) {
		if ours[i] != theirs[i] {
			return int64(i) + 1, nil
		}
	}
	return 0, nil
}

// Foreign says whether a host does not believe the cluster's roots, by what was found when it was last reached.
func Foreign(host *v1beta1.SSHHost) bool {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionTrustCurrent && c.Status == metav1.ConditionFalse && c.Reason == v1beta1.ReasonDispatchKeyUnknown {
			return true
		}
	}
	return false
}

// otherRoot says whether a host believes another root document than the chain's of that version.
func otherRoot(trust *v1beta1.HostTrust, roots []string) bool {
	n := trust.RootVersion
	return trust.RootDigest != "" && n >= 1 && n <= int64(len(roots)) && trust.RootDigest != roots[n-1]
}

// HasAllowlist says whether a host has an allowlist, by its digest where the host's status has that.
func HasAllowlist(trust *v1beta1.HostTrust, list signing.DocumentRef) bool {
	return trust.AllowlistVersion == list.Version && (trust.AllowlistDigest == "" || trust.AllowlistDigest == list.Digest)
}

// ErrNoDocuments says that neither a folder nor the cluster has any.
var ErrNoDocuments = errors.New("neither the folder nor the cluster has a root document")

// Evaluate holds the cluster against the documents of a folder, which may be nil: then its own are the measure.
func Evaluate(folder *documents.Set, pool *cluster.Pool, now time.Time) (*Report, error) {
	published, err := Published(pool)
	if err != nil {
		return nil, err
	}
	want := folder
	if want == nil {
		want = published
	}
	if want == nil {
		return nil, ErrNoDocuments
	}
	r := report(want, published, now)
	list, err := want.AllowlistRef()
	if err != nil {
		return nil, err
	}
	if r.Waiting, err = forks(folder, published, list); err != nil {
		return nil, err
	}
	roots, err := want.RootDigests()
	if err != nil {
		return nil, err
	}
	r.Waiting = append(r.Waiting, r.documents(now)...)
	if key, err := signing.ParseKey(pool.DispatchKey); err == nil && !slices.ContainsFunc(want.Root.Dispatch.Keys, key.Equal) {
		r.Waiting = append(r.Waiting, DispatchKeyUnlisted)
	}
	for i := range pool.Hosts {
		r.Hosts = append(r.Hosts, hostOf(&pool.Hosts[i], want, roots, list))
	}
	return r, nil
}

// report is what is to be published, and which versions of it are.
func report(want, published *documents.Set, now time.Time) *Report {
	r := &Report{Root: document(want.Root.Version, want.Root.Expires, now), Waiting: []string{}, Hosts: []Host{}}
	if published != nil {
		r.Root.Published = published.Root.Version
	}
	if want.Allowlist != nil {
		list := document(want.Allowlist.Version, want.Allowlist.Expires, now)
		if published != nil && published.Allowlist != nil {
			list.Published = published.Allowlist.Version
		}
		r.Allowlist = &list
	}
	return r
}

// forks says which documents of one version differ between folder and cluster. list is the folder's allowlist.
func forks(folder, published *documents.Set, list signing.DocumentRef) ([]string, error) {
	waiting := []string{}
	if folder == nil || published == nil {
		return waiting, nil
	}
	forked, err := Forked(folder, published)
	if err != nil {
		return nil, err
	}
	if forked > 0 {
		waiting = append(waiting, RootForked)
	}
	theirs, err := published.AllowlistRef()
	if err != nil {
		return nil, err
	}
	if theirs.Version == list.Version && theirs.Digest != list.Digest {
		waiting = append(waiting, AllowlistForked)
	}
	return waiting, nil
}

const day = 24 * time.Hour

func document(version int64, expires, now time.Time) Document {
	return Document{Version: version, Expires: expires, DaysLeft: int(expires.Sub(now) / day)}
}

func (r *Report) documents(now time.Time) []string {
	var waiting []string
	add := func(holds bool, what string) {
		if holds {
			waiting = append(waiting, what)
		}
	}
	add(r.Root.Published < r.Root.Version, RootUnpublished)
	add(r.Root.Published > r.Root.Version, FolderBehind)
	add(!now.Before(r.Root.Expires), RootExpired)
	add(r.Allowlist == nil, NoAllowlist)
	add(r.Allowlist != nil && r.Allowlist.Published != r.Allowlist.Version, AllowlistUnpublished)
	add(r.Allowlist != nil && !now.Before(r.Allowlist.Expires), AllowlistExpired)
	return waiting
}

// hostOf holds what a host last said against the documents. roots are the digests of the chain. What a controller of
// earlier wrote has versions and no digests, and is compared by these alone.
func hostOf(host *v1beta1.SSHHost, want *documents.Set, roots []string, list signing.DocumentRef) Host {
	h := Host{Name: host.Name, State: string(host.Status.State), Findings: []string{}, Waiting: []string{}}
	if host.Raw() {
		h.ShimVersion = "(Raw)"
		return h
	}
	trust := host.Status.Trust
	if trust == nil {
		h.Waiting = append(h.Waiting, NeverSeen)
		return h
	}
	h.RootVersion, h.AllowlistVersion, h.ShimVersion = trust.RootVersion, trust.AllowlistVersion, trust.ShimVersion
	h.Findings = append(h.Findings, trust.Findings...)
	if trust.ObservedTime != nil {
		h.Seen = &trust.ObservedTime.Time
	}
	h.Waiting = append(h.Waiting, waitsFor(host, want, roots, list)...)
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionTrustCurrent && c.Status == metav1.ConditionFalse {
			h.Reason = c.Reason
		}
	}
	return h
}

// waitsFor names what a host that was heard of waits for.
func waitsFor(host *v1beta1.SSHHost, want *documents.Set, roots []string, list signing.DocumentRef) []string {
	trust := host.Status.Trust
	var waiting []string
	add := func(holds bool, what string) {
		if holds {
			waiting = append(waiting, what)
		}
	}
	add(trust.RootVersion < want.Root.Version, RootBehind)
	add(trust.RootVersion > want.Root.Version, RootAhead)
	add(Foreign(host) || otherRoot(trust, roots), TrustForeign)
	if want.Allowlist != nil {
		add(trust.AllowlistVersion != list.Version, AllowlistBehind)
		add(trust.AllowlistVersion == list.Version && !HasAllowlist(trust, list), AllowlistForeign)
		add(wire.OlderThan(trust.ShimVersion, want.Allowlist.MinShim), ShimTooOld)
	}
	return waiting
}
