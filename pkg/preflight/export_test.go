package preflight

// Names are those of all checks.
func Names() []string {
	names := []string{CapacityDrift}
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}
