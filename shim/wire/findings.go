package wire

import "slices"

// Names of what a host's doctor finds about its hardening: a closed list that hellos carry and that a controller's
// policy goes by. A newer shim may know more names.
const (
	FindingSSHDUnreadable    = "sshd-unreadable"      // what sshd would do cannot be told
	FindingSSHDEarlierMatch  = "sshd-earlier-match"   // what sshd would do depends on who asks
	FindingForceCommand      = "force-command"        // user kpssh can run something else than the shim
	FindingForwarding        = "forwarding"           // user kpssh can forward ports, agents or sockets
	FindingTTY               = "tty"                  // user kpssh gets a terminal
	FindingUserRC            = "user-rc"              // ~/.ssh/rc is run
	FindingUserEnvironment   = "user-environment"     // ~/.ssh/environment is read
	FindingAcceptEnv         = "accept-env"           // clients set more than LANG and LC_*
	FindingAuthorizedKeys    = "authorized-keys-file" // keys are taken from elsewhere
	FindingOtherCredentials  = "other-credentials"    // a command or a CA can let keys in
	FindingPasswordLogin     = "password-login"       // something else than a public key logs in
	FindingUnrestrictedKey   = "unrestricted-key"     // a key lacks restrict
	FindingAuthorizedKeyMode = "authorized-keys-mode" // others than root can change the keys
	FindingNoUser            = "no-user"              // there is no user kpssh
	FindingLoginShell        = "login-shell"          // the login shell is not the shim
	FindingPrivilegedUser    = "privileged-user"      // user kpssh is root, or in a group that makes it root
	FindingHome              = "home"                 // the home is not root's, or not empty
	FindingShimMode          = "shim-mode"            // others than root can change the shim
	FindingStateMode         = "state-mode"           // others than root can enter the state
	FindingConfigMode        = "config-mode"          // others than root can change /etc/kpssh
	FindingSocketMode        = "socket-mode"          // others than kpssh reach the root stage
	FindingSudoRule          = "sudo-rule"            // sudo lets user kpssh do more than start the root stage
	FindingNoEntry           = "no-entry"             // neither socket nor sudo leads to the root stage
	FindingNoBash            = "no-bash"              // scripts cannot run
)

// ShimPath is where each host has the shim: outside of PATH, so that what tells people to run it names it in full.
const ShimPath = "/usr/libexec/kpssh/kpssh-shim"

// Finding is what there is to say about a finding wherever it turns up.
type Finding struct {
	Name string
	// Bypass says that somebody else than root may get around the shim, change it or what it believes, or decide who
	// may log in. The others leave another wall standing.
	Bypass bool
	// Fix is one line that tells the host's operator what to do.
	Fix string
}

// Findings is the closed list.
func Findings() []Finding {
	const dropIn = "/etc/ssh/sshd_config.d/00-kpssh.conf"
	return []Finding{
		{FindingSSHDUnreadable, true, "make `sshd -T -C user=kpssh` work, and run `" + ShimPath + " doctor` again"},
		{FindingSSHDEarlierMatch, true, "put the Match block after the Include of " + dropIn + ", then reload sshd"},
		{FindingForceCommand, true, "let nothing set ForceCommand before " + dropIn + " does, then reload sshd"},
		{FindingForwarding, true, "set DisableForwarding yes and PermitTunnel no for user kpssh, then reload sshd"},
		{FindingTTY, false, "set PermitTTY no for user kpssh, then reload sshd"},
		{FindingUserRC, true, "set PermitUserRC no for user kpssh, then reload sshd"},
		{FindingUserEnvironment, true, "set PermitUserEnvironment no in sshd_config, then reload sshd"},
		{FindingAcceptEnv, false, "take all but LANG and LC_* out of AcceptEnv for user kpssh, then reload sshd"},
		{FindingAuthorizedKeys, true, "set AuthorizedKeysFile /etc/kpssh/authorized_keys for user kpssh, then reload sshd"},
		{FindingOtherCredentials, true, "set AuthorizedKeysCommand none and TrustedUserCAKeys none for user kpssh, then reload sshd"},
		{FindingPasswordLogin, true, "set AuthenticationMethods publickey for user kpssh, then reload sshd"},
		{FindingUnrestrictedKey, false, "begin each line of /etc/kpssh/authorized_keys with restrict, or run `kpssh host enroll` again"},
		{FindingAuthorizedKeyMode, true, "chown root:root and chmod go-w /etc/kpssh/authorized_keys and the directories above it"},
		{FindingNoUser, true, "run `" + ShimPath + " install`"},
		{FindingLoginShell, true, "usermod --shell " + ShimPath + " kpssh"},
		{FindingPrivilegedUser, true, "give user kpssh a uid and a group of its own: remove it, and run `" + ShimPath + " install`"},
		{FindingHome, false, "empty the home of user kpssh, chown root:root and chmod go-w it"},
		{FindingShimMode, true, "chown root:root and chmod go-w the shim and the directories above it, and install it again"},
		{FindingStateMode, true, "chown root:root and chmod 0700 /var/lib/kpssh; who could write there has been the host: reinstall it"},
		{FindingConfigMode, true, "chown root:root and chmod go-w /etc/kpssh, and compare root.json with the operator's"},
		{FindingSocketMode, true, "systemctl restart kpssh.socket, and take out overrides of its SocketMode, SocketUser and SocketGroup"},
		{FindingSudoRule, true, "take user kpssh out of all rules of sudo but the one in /etc/sudoers.d/kpssh"},
		{FindingNoEntry, false, "systemctl enable --now kpssh.socket, or run `" + ShimPath + " install --sudo`"},
		{FindingNoBash, false, "install bash"},
	}
}

// FindingOf looks a finding up. One that is not listed, of a newer shim, is taken for the worst.
func FindingOf(name string) Finding {
	all := Findings()
	if i := slices.IndexFunc(all, func(f Finding) bool { return f.Name == name }); i >= 0 {
		return all[i]
	}
	return Finding{Name: name, Bypass: true, Fix: "run `" + ShimPath + " doctor` on the host: its shim is newer than the controller"}
}
