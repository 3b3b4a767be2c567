package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Table is text in aligned columns.
type Table struct {
	rows [][]string
}

// NewTable starts a table. Headings that are all empty are not printed.
func NewTable(headings ...string) *Table {
	t := &Table{}
	if strings.Join(headings, "") != "" {
		t.rows = append(t.rows, headings)
	}
	return t
}

// Row adds a row.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *Table) writeTo(w io.Writer) error {
	var b, out strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		cells := make([]string, len(row)) // they hold names and values of files and hosts
		for i, cell := range row {
			cells[i] = strings.ReplaceAll(Visible(cell), "\t", " ")
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	_ = tw.Flush() // into memory
	for _, line := range strings.SplitAfter(b.String(), "\n") {
		if text, ended := strings.CutSuffix(line, "\n"); ended {
			out.WriteString(strings.TrimRight(text, " ") + "\n")
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Print writes data to stdout in the format that -o asked for; table makes the human form.
func (e *Env) Print(format string, data any, table func() *Table) error {
	switch format {
	case "json":
		out, err := json.MarshalIndent(data, "", "  ")
		if err != nil {
			return err
		}
		_, err = e.Stdout.Write(append(escapeHidden(out), '\n'))
		return err
	case "yaml":
		out, err := yaml.Marshal(data)
		if err != nil {
			return err
		}
		_, err = e.Stdout.Write(out)
		return err
	case "table", "":
		return table().writeTo(e.Stdout)
	}
	return Usagef("unknown output format %q: json, yaml or table", format)
}

// PrintTo writes a table to one of the streams.
func (e *Env) PrintTo(w io.Writer, t *Table) { _ = t.writeTo(w) }
