// Package charts holds the Helm charts; its tests render them with Helm's own engine.
package charts
