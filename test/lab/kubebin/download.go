package kubebin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

// errUnreachable makes the caller build instead. Only the first request can end in it: once the files are known to
// be there, a failure is a failure.
var errUnreachable = errors.New("unreachable")

// downloadAttempts is how often one file is begun or resumed.
const downloadAttempts = 4

// maxBinary bounds what a server can make us write.
const maxBinary = 1 << 30

// reachable bounds the wait for an answer: without a network it is all that the attempt costs.
const reachable = 5 * time.Second

var sha256Line = regexp.MustCompile(`^[0-9a-f]{64}(\s|$)`)

// newClient gives up soon on a server that does not answer, and never on one that is merely slow.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: reachable}).DialContext,
		TLSHandshakeTimeout:   reachable,
		ResponseHeaderTimeout: 2 * reachable,
	}}
}

// download fetches the components of a release into dir.
func (f Finder) download(ctx context.Context, dir string) error {
	if f.ReleaseURL == "off" || f.ReleaseURL == "" {
		return fmt.Errorf("%w: switched off", errUnreachable)
	}
	base := fmt.Sprintf("%s/%s/bin/linux/%s/", f.ReleaseURL, f.Version, f.Arch)
	sums := map[string]string{}
	for i, name := range Components() {
		sum, err := f.checksum(ctx, base+name+".sha256")
		if err != nil && i == 0 && ctx.Err() == nil {
			return fmt.Errorf("%w: %w", errUnreachable, err)
		}
		if err != nil {
			return err
		}
		sums[name] = sum
	}
	for _, name := range Components() {
		if err := f.fetch(ctx, base+name, filepath.Join(dir, name), sums[name]); err != nil {
			return fmt.Errorf("downloading %s: %w", name, err)
		}
	}
	return nil
}

func (f Finder) checksum(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*reachable)
	defer cancel()
	resp, err := f.get(ctx, url, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", url, err)
	}
	if !sha256Line.Match(body) {
		return "", fmt.Errorf("reading %s: not a SHA-256 sum", url)
	}
	return string(body[:64]), nil
}

// fetch downloads url to path, resuming where a connection broke, and refuses it when its sum is not sum.
func (f Finder) fetch(ctx context.Context, url, path, sum string) (err error) {
	var got atomic.Int64
	done := cachedir.Step(f.Log, func() string { return fmt.Sprintf("%d MiB", got.Load()>>20) }, "downloading %s", url)
	defer func() { done(err) }()

	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	hash := sha256.New()
	for attempt := 1; ; attempt++ {
		err = f.append(ctx, url, &got, io.MultiWriter(file, hash))
		if err == nil || attempt == downloadAttempts || ctx.Err() != nil {
			break
		}
		f.Log.Printf("  the connection broke after %d bytes: resuming", got.Load())
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if have := hex.EncodeToString(hash.Sum(nil)); have != sum {
		return fmt.Errorf("refusing %s: its SHA-256 is %s, and the release says %s", url, have, sum)
	}
	return nil
}

// append writes what is missing after the first *got bytes.
func (f Finder) append(ctx context.Context, url string, got *atomic.Int64, w io.Writer) error {
	resp, err := f.get(ctx, url, got.Load())
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body := io.LimitReader(resp.Body, maxBinary)
	if resp.StatusCode == http.StatusOK { // also from a server that cannot resume: skip what is here already
		if _, err := io.CopyN(io.Discard, body, got.Load()); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, &counter{r: body, n: got})
	return err
}

// get asks for url from offset on.
func (f Finder) get(ctx context.Context, url string, offset int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := f.Client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		return nil, errors.Join(fmt.Errorf("getting %s: %s", url, resp.Status), resp.Body.Close())
	}
	return resp, nil
}

type counter struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}
