// Package artifact looks at the files that `make build` made.
package artifact
