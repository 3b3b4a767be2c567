// incluster finds the API server as a pod does, says who it is there and how it was reached, asks for something that it
// may not have, and says how the sshd at the address in its argument greets it.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(sshd string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	me, err := clients.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authnv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	fmt.Println(config.Host, me.Status.UserInfo.Username)
	if _, err := clients.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		return fmt.Errorf("listing Secrets: %w, and not forbidden", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", sshd)
	if err != nil {
		return err
	}
	greeting, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Print(greeting)
	return conn.Close()
}
