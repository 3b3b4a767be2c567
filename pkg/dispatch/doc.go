// Package dispatch runs phases of a join profile on hosts and believes only answers that it has
// verified.
//
// In Verified mode a request becomes an order that the dispatch key signs for one host, one session
// and one claim. Nothing is dialled for a script that the author's allowlist does not hold; nothing
// but the question is sent before the host's hello verifies under the key that it was enrolled with;
// nothing is believed but a receipt of that key which answers this very order, together with the
// output that it vouches for.
//
// A run survives its connection, and the process that ordered it. Run therefore asks first what the
// host ran last: a run of the same claim, phase, profile, version and script that still goes on is
// waited for, one that ended is collected, and only one that never was, or was interrupted, is
// ordered. When the connection is lost in between, Run dials again and collects until the run's own
// deadline has passed.
//
// In Raw mode, which has to be allowed when the dispatcher is made, scripts go through "sudo -n" on
// hosts without a shim. Of the promises above only the deadline and the bounds remain.
//
// Every error is an [*Error], with a class and a stable reason. Text that came from a host is
// sanitised, and the values of the request's secrets are taken out of it.
package dispatch
