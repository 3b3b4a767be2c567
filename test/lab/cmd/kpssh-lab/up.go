package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

func up(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	hosts, node, command, keepLogs := 2, false, "", false
	err = parse("up", args, stderr, func(f *flag.FlagSet) {
		f.IntVar(&hosts, "hosts", hosts, "how many pool hosts to add")
		f.BoolVar(&node, "node", false, "start the control plane's own node too, which runs pods of the cluster itself")
		f.StringVar(&command, "exec", "", "run this shell command with KUBECONFIG set, and end with it, instead of waiting for Ctrl-C")
		f.BoolVar(&keepLogs, "keep-logs", false, "leave the logs in place at the end")
	})
	if err != nil {
		return err
	}
	if hosts < 0 {
		return usageError{fmt.Errorf("-hosts is %d", hosts)}
	}
	log := progress(stderr)
	l, err := lab.Start(ctx, lab.Options{Log: log, ControlPlaneOnly: hosts == 0 && !node})
	if err != nil {
		return err
	}
	defer func() {
		log("removing lab %s", l.ID())
		err = errors.Join(err, l.Close())
	}()
	if keepLogs {
		if err := l.KeepLogs(); err != nil {
			return err
		}
		log("logs stay in %s", l.LogDir())
	}
	if err := addHosts(ctx, l, hosts); err != nil {
		return err
	}
	if node {
		if _, err := l.StartNode(ctx, lab.NodeOptions{}); err != nil {
			return err
		}
	}
	kubeconfig, err := l.ForwardedKubeconfig(ctx)
	if err != nil {
		return err
	}
	if command != "" {
		out, err := l.RunProcess(ctx, lab.ProcessSpec{
			Argv: []string{"sh", "-c", command}, Stdin: os.Stdin,
			Env: []string{"KUBECONFIG=" + l.Kubeconfig(), "PATH=" + l.BinDir() + ":" + os.Getenv("PATH"), "KPSSH_LAB_KEY=" + l.AdminKeyPath()},
		})
		fmt.Fprint(stdout, out)
		return err
	}
	describe(stdout, l, kubeconfig)
	<-ctx.Done()
	return nil
}

func addHosts(ctx context.Context, l *lab.Lab, n int) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, errs[i] = l.AddHost(ctx, lab.HostOptions{Name: fmt.Sprintf("host-%c", 'a'+i)})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func describe(w io.Writer, l *lab.Lab, kubeconfig string) {
	fmt.Fprintf(w, "\nLab %s is up until you press Ctrl-C. In another terminal:\n\n", l.ID())
	fmt.Fprintf(w, "  export KUBECONFIG=%s PATH=%s:$PATH\n  kubectl get nodes\n\n", kubeconfig, l.BinDir())
	for _, h := range l.Hosts() {
		fmt.Fprintf(w, "  # %s\n  nsenter --net=/run/netns/kpssh-%s ssh -i %s -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null root@%s\n",
			h.Name, l.ID(), l.AdminKeyPath(), h.Address)
	}
	fmt.Fprintf(w, "\nLogs: %s\n", l.LogDir())
}
