package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	opmetrics "github.com/awslabs/operatorpkg/metrics"
	"github.com/awslabs/operatorpkg/serrors"
	"github.com/go-logr/zapr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/logging"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/operator/options"
)

// Name is how the controller calls itself to the API server.
const Name = "karpenter-provider-ssh"

// memoryShare of a container's limit is where the garbage collector begins to work harder, as in core.
const memoryShare = 0.9

// Operator is a controller that is ready to start.
type Operator struct {
	manager  manager.Manager
	recorder events.Recorder
	clock    clock.WithTicker
	options  *options.Options
	audit    *dispatch.AuditLog // nil when it is off
}

// New makes a controller, of the program's version, for the cluster of the environment (KUBECONFIG, or the one it runs
// in). Standard output takes the audit log, if that goes there.
func New(ctx context.Context, opts *options.Options, version string, stdout io.Writer) (*Operator, error) {
	ctx = opts.Core.ToContext(ctx)
	if limit := opts.Core.MemoryLimit; limit > 0 {
		debug.SetMemoryLimit(int64(float64(limit) * memoryShare))
	}
	logger := serrors.NewLogger(zapr.NewLogger(logging.NewLogger(ctx, "controller")))
	log.SetLogger(logger)
	klog.SetLogger(logger)
	ctx = log.IntoContext(ctx, logger)
	logger.Info("starting "+Name, "version", version, "poolNamespace", opts.PoolNamespace, "namespace", opts.Namespace)

	opmetrics.RegisterClientMetrics(crmetrics.Registry)
	// Core finds node classes, and the labels that types may define, in globals of its own.
	if err := v1beta1.AddToScheme(scheme.Scheme); err != nil {
		return nil, fmt.Errorf("registering API types: %w", err)
	}
	cloudprovider.RegisterLabels()

	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	mgr, err := newManager(ctx, config, opts, version)
	if err != nil {
		return nil, err
	}
	if err := missingCRDs(mgr); err != nil {
		return nil, err
	}
	o := &Operator{
		manager: mgr, clock: clock.RealClock{}, options: opts,
		recorder: events.NewRecorder(mgr.GetEventRecorderFor(Name)), //nolint:staticcheck // core's recorder wants this one
	}
	if o.audit, err = o.auditLog(ctx, stdout); err != nil {
		return nil, err
	}
	return o, o.wire(ctx)
}

// Start runs the controller until ctx ends. It gives up its lease on the way out, so that a successor need not wait.
func (o *Operator) Start(ctx context.Context) error {
	err := o.manager.Start(o.options.Core.ToContext(ctx))
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if err = errors.Join(err, o.closeAudit()); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}
