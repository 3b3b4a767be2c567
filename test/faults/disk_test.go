//go:build faults

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// A host's file systems are the machine's, which must not be filled. So /etc and /var move to a small one of their own
// first, with a copy of all that is in them, and back at the end. Blocks that are reserved stay so.
const (
	move = `set -eu
mkdir -p /run/disk
mount -t tmpfs -o size=3g,mode=0755 tmpfs /run/disk
for d in etc var; do cp -ax --sparse=never /$d /run/disk/; done
mkdir -p /run/disk/var/lib/containerd /run/disk/var/lib/kubelet
mount --bind /var/lib/containerd /run/disk/var/lib/containerd
mount --bind /var/lib/kubelet /run/disk/var/lib/kubelet
mount --rbind /run/disk/var /var
mount --bind /run/disk/etc /etc
`
	moveBack = `set -eu
umount -l /etc /var
for d in etc var; do
  mkdir -p /run/under && mount --bind / /run/under
  cp -ax --sparse=never /run/disk/$d /run/under/
  umount /run/under
done
umount -l /run/disk
`
	// It is made as small as what is in it.
	fillUp = `set -eu
used=$(df --output=used -B1 /run/disk | tail -n 1)
mount -o remount,size=$((used + 65536)) /run/disk
dd if=/dev/zero of=/var/filler bs=4k 2>/dev/null || true
! echo more >/var/more 2>/dev/null
`
	emptyIt = `mount -o remount,size=3g /run/disk && rm -f /var/filler /var/more`
	// Private, or taking it away would take what is mounted below from under the real one as well.
	lock      = `set -eu; for d in /var /etc; do mount --rbind $d $d; mount --make-rprivate $d; mount -o remount,bind,ro $d; done; ! touch /var/more 2>/dev/null`
	unlock    = `umount -l /var /etc`
	forAWhile = 30 * time.Second
)

// onDisk breaks the disk of the host that a trial is in, and mends it.
func onDisk(t *testing.T, name, breakIt, mendIt string, held bool) {
	for _, h := range on.Hosts() {
		exec(t, h, move)
		t.Cleanup(func() { exec(t, h, moveBack) })
	}
	each(t, name, []moment{installing, joining, inUse, leaving}, func(t *testing.T, tr *trial, m moment) {
		h := machine(t, tr.reach(m))
		exec(t, h, breakIt)
		mended := false
		mend := func() {
			if !mended {
				mended = true
				exec(t, h, mendIt)
			}
		}
		t.Cleanup(mend)
		if held && m == inUse {
			// Nobody is kept from leaving by a full disk: all that leaving needs was made at enrolment.
			tr.down()
			must(t, on.Until(within(t), "the host to be released on a full disk", func(ctx context.Context) error {
				host := hostNamed(ctx, h.Name)
				if host == nil || host.Status.ClaimRef != nil {
					return errNotYet
				}
				if c := host.Status.Cleanup; c != nil {
					return fmt.Errorf("it was released with a debt: %+v", c)
				}
				return nil
			}))
			mend()
			tr.check()
			return
		}
		<-time.After(forAWhile)
		mend()
		tr.finish(m)
	})
}

func exec(t *testing.T, h *lab.Host, script string) {
	t.Helper()
	if _, err := h.Exec(within(t), "sh", "-c", script); err != nil {
		t.Error(err)
	}
}

// TestADiskIsFull has nothing free on a host's /etc and /var for half a minute, or until it has left.
func TestADiskIsFull(t *testing.T) { onDisk(t, "full", fillUp, emptyIt, true) }

// TestADiskIsReadOnly has the kernel refuse every write to a host's /etc and /var for half a minute.
func TestADiskIsReadOnly(t *testing.T) { onDisk(t, "readonly", lock, unlock, false) }
