// Package membership is what a host's being part of the cluster consists of, apart from who decides
// about it: the phases that run on it for a claim, the Node object that it backs, and the rule that
// one process does one thing at a time to a host.
//
// The controllers under pkg/controllers decide when; nothing here keeps state that a restart would miss.
package membership
