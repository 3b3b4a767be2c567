// Package crdtest does to an object what an API server does before it stores it, with the API server's
// own packages and without one: pruning, defaults, OpenAPI, list types and CEL. For tests.
package crdtest

import (
	"context"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// Admission is what stands between an object of one kind and its storage.
type Admission struct {
	schema *schema.Structural
	open   validation.SchemaValidator
	cel    *cel.Validator
}

// Load reads CRD manifests, by kind, and fails for what an API server would not accept as a CRD (CEL
// rules that do not compile or may cost too much among it).
func Load(t testing.TB, manifests [][]byte) map[string]*Admission {
	t.Helper()
	out := map[string]*Admission{}
	for _, manifest := range manifests {
		crd := Decode(t, manifest)
		if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), crd); len(errs) > 0 {
			t.Fatalf("%s: the API server would refuse the CRD: %v", crd.Name, errs.ToAggregate())
		}
		version := crd.Spec.Versions[len(crd.Spec.Versions)-1]
		props := openAPI(crd, version)
		structural, err := schema.NewStructural(props)
		if err != nil {
			t.Fatalf("%s: %v", crd.Name, err)
		}
		open, _, err := validation.NewSchemaValidator(props)
		if err != nil {
			t.Fatalf("%s: %v", crd.Name, err)
		}
		out[crd.Spec.Names.Kind] = &Admission{
			schema: structural, open: open,
			cel: cel.NewValidator(structural, true, celconfig.PerCallLimit),
		}
	}
	return out
}

// openAPI is the schema of a version: conversion lifts one that all versions share.
func openAPI(crd *apiextensions.CustomResourceDefinition, version apiextensions.CustomResourceDefinitionVersion) *apiextensions.JSONSchemaProps {
	if version.Schema != nil {
		return version.Schema.OpenAPIV3Schema
	}
	return crd.Spec.Validation.OpenAPIV3Schema
}

// Decode reads a CRD manifest.
func Decode(t testing.TB, manifest []byte) *apiextensions.CustomResourceDefinition {
	t.Helper()
	var external apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(manifest, &external); err != nil {
		t.Fatalf("reading a CRD: %v", err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&external)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
	external.Status.StoredVersions = []string{external.Spec.Versions[0].Name}
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&external, &crd, nil); err != nil {
		t.Fatalf("converting CRD %q: %v", external.Name, err)
	}
	return &crd
}

// Admit defaults object in place and returns why it would be refused; old is nil on create. Unknown
// fields count as refused, as kubectl's strict field validation treats them.
func (a *Admission) Admit(ctx context.Context, object, old map[string]any) field.ErrorList {
	unknown := pruning.PruneWithOptions(object, a.schema, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	var errs field.ErrorList
	for _, path := range unknown {
		errs = append(errs, field.Invalid(field.NewPath(path), nil, "unknown field"))
	}
	defaulting.Default(object, a.schema)
	if old == nil {
		errs = append(errs, validation.ValidateCustomResource(nil, object, a.open)...)
	} else {
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, object, old, a.open)...)
	}
	errs = append(errs, objectmeta.Validate(ctx, nil, object, a.schema, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, a.schema, object)...)
	var oldObject any
	if old != nil {
		oldObject = old
	}
	ruleErrs, _ := a.cel.Validate(ctx, nil, a.schema, object, oldObject, celconfig.RuntimeCELCostBudget)
	return append(errs, ruleErrs...)
}

// Object reads one YAML object with numbers of the types that an API server's decoder makes.
func Object(t testing.TB, manifest []byte) map[string]any {
	t.Helper()
	asJSON, err := yaml.YAMLToJSONStrict(manifest)
	if err != nil {
		t.Fatalf("reading the object: %v", err)
	}
	out := map[string]any{}
	if err := utiljson.Unmarshal(asJSON, &out); err != nil {
		t.Fatalf("reading the object: %v", err)
	}
	return out
}

// Decodable fails for an admitted object that a typed client could not read: one such object would
// break every List of its kind.
func Decodable(t testing.TB, object map[string]any, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, into, true); err != nil {
		t.Errorf("admitted, and no client can read it: %v", err)
	}
}
