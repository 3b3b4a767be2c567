// Package metrics has a real Prometheus read the chart's alerts, scrape a real controller and ask what the chart's
// dashboard asks.
package metrics
