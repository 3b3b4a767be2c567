// Package bootstrap makes what a host needs in order to join the cluster: a bootstrap token, and
// the endpoint and certificate authority of the API server.
//
// A token must never outlive its use, and a controller may die between any two lines. So a token
// is named before it exists: the caller chooses an id with NewTokenID, records it where it will be
// found again (SSHHost.status.bootstrapTokenID), and only then calls Tokens.Ensure, which makes the
// Secret or goes on using the one that an earlier attempt made. Whoever ends the claim deletes the
// token by its recorded id. Tokens.Sweep removes what slipped through, for instance when a host
// object was deleted while a token was out.
package bootstrap
