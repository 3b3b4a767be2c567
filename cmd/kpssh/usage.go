package main

const usage = `
Usage: @kpssh VERB [flags]

kpssh decides what a pool of SSH hosts may run. Three commands take a pool from
nothing to hosts that run only what you signed:

    $ @kpssh init
    $ @kpssh profile sign --pin-cluster profile.yaml nodeclass.yaml
    $ @kpssh host enroll root@10.0.0.11
    $ kubectl apply -f trust/manifests/

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failure,
2 wrong usage.
`

const profileUsage = `
Usage: @kpssh profile VERB [flags]

The author's side: what a join profile runs on hosts, and with which parameters.
`

const hostUsage = `
Usage: @kpssh host VERB [flags]
`

const rootUsage = `
Usage: @kpssh root VERB [flags]

A root document says which keys allow scripts (author) and which sign orders
(dispatch). 'init' makes the first one; these verbs make its successors.
`

const keysUsage = `
Usage: @kpssh keys VERB [flags]

Where a verb wants a KEY, a file does, or a key in a KMS, named awskms://…,
gcpkms://…, azurekms://… or hashivault://… and reached with the credentials that
the provider's own tools use. The private half of such a key never leaves it.
`

const verifyUsage = `
Usage: @kpssh verify VERB [flags]

Checks a document the way a host does (hello and receipt: a controller), without
one, and says what the verdict is. test/vectors has documents with their verdicts.
`
