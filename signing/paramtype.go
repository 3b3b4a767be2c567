package signing

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// builtIn is what a type demands by itself: how long a value may be when its schema does not say
// (0 for a type that is not known), and its form.
func (t ParamType) builtIn() (maxLength int, fits func(string) bool) {
	switch t {
	case ParamString:
		return 512, isPlainText
	case ParamEndpoint:
		return 512, isEndpoint
	case ParamCABundle:
		return 32 << 10, isBundle
	case ParamIP:
		return 45, isIP
	case ParamHost:
		return 253, isHost
	case ParamNodeName:
		return 253, isDNSName
	case ParamURI:
		return 512, isURI
	case ParamLabels:
		return 4096, isLabels
	case ParamTaints:
		return 4096, isTaints
	case ParamToken:
		return 23, isToken
	}
	return 0, nil
}

const (
	lowerAlphanumeric = "abcdefghijklmnopqrstuvwxyz0123456789"
	plainText         = alphanumeric + " -._:/,=+@%~"
	uriText           = alphanumeric + "-._~:/?#[]@&+,=%"
)

// isPlainText holds for text without the characters that a shell gives a meaning to.
func isPlainText(s string) bool { return strings.Trim(s, plainText) == "" }

// isToken holds for a bootstrap token of Kubernetes, ID.SECRET.
func isToken(s string) bool {
	id, secret, found := strings.Cut(s, ".")
	return found && len(id) == 6 && len(secret) == 16 && strings.Trim(id+secret, lowerAlphanumeric) == ""
}

func isBundle(s string) bool {
	_, err := SPKIPins(s)
	return err == nil
}

func isIP(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == "" && a.String() == s
}

// isDNSName holds for RFC 1123 names in lower case, without the final dot.
func isDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !spelled(label, 63, lowerAlphanumeric+"-") || !edges(label) {
			return false
		}
	}
	return true
}

// isHost holds for an IP address in its canonical spelling or a DNS name. A name that ends in a
// number is neither: resolvers take 127.1 and 0x7f.1 for addresses.
func isHost(s string) bool {
	if isIP(s) {
		return true
	}
	last := s[strings.LastIndexByte(s, '.')+1:]
	return isDNSName(s) && (last[0] < '0' || last[0] > '9')
}

// isEndpoint holds for https://HOST[:PORT], in one spelling: nothing after it, no user, no path.
func isEndpoint(s string) bool {
	rest, found := strings.CutPrefix(s, "https://")
	if !found {
		return false
	}
	host := rest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.HasSuffix(rest, "]") {
		port, err := strconv.ParseUint(rest[i+1:], 10, 16)
		if err != nil || port == 0 || strconv.FormatUint(port, 10) != rest[i+1:] {
			return false
		}
		host = rest[:i]
	}
	if inner, found := strings.CutPrefix(host, "["); found {
		inner, found = strings.CutSuffix(inner, "]")
		return found && isIP(inner) && strings.Contains(inner, ":")
	}
	return host != "" && !strings.Contains(host, ":") && isHost(host)
}

// isURI holds for a lower case scheme, "://", and characters that need no quoting.
func isURI(s string) bool {
	scheme, rest, found := strings.Cut(s, "://")
	return found && spelled(scheme, 32, lowerAlphanumeric+"+-.") && scheme[0] >= 'a' && scheme[0] <= 'z' &&
		spelled(rest, len(s), uriText)
}

// isLabels holds for k=v,… without a key twice; empty is no labels.
func isLabels(s string) bool {
	if s == "" {
		return true
	}
	var keys []string
	for item := range strings.SplitSeq(s, ",") {
		key, value, found := strings.Cut(item, "=")
		if !found || !isQualifiedName(key) || !emptyOr(value, isLabelValue) || slices.Contains(keys, key) {
			return false
		}
		keys = append(keys, key)
	}
	return true
}

// isTaints holds for key[=value]:effect,… without a key and effect twice; empty is no taints.
func isTaints(s string) bool {
	if s == "" {
		return true
	}
	var seen []string
	for item := range strings.SplitSeq(s, ",") {
		i := strings.LastIndexByte(item, ':')
		if i < 0 {
			return false
		}
		key, value, _ := strings.Cut(item[:i], "=")
		effect := item[i+1:]
		if !isQualifiedName(key) || !emptyOr(value, isLabelValue) || slices.Contains(seen, key+":"+effect) {
			return false
		}
		if effect != "NoSchedule" && effect != "PreferNoSchedule" && effect != "NoExecute" {
			return false
		}
		seen = append(seen, key+":"+effect)
	}
	return true
}

// isQualifiedName holds for Kubernetes' [PREFIX/]NAME.
func isQualifiedName(s string) bool {
	prefix, name, found := strings.Cut(s, "/")
	if !found {
		return isLabelValue(s)
	}
	return isDNSName(prefix) && isLabelValue(name)
}

func isLabelValue(s string) bool { return spelled(s, 63, alphanumeric+"-._") && edges(s) }
