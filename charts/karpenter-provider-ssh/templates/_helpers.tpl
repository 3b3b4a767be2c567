{{- define "kpssh.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "kpssh.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "kpssh.name" .) }}
{{- end }}

{{- define "kpssh.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kpssh.labels" -}}
{{ include "kpssh.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kpssh.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* kpssh.binding: a RoleBinding of the role of that suffix in that namespace. (dict "root" . "suffix" "-pool" "namespace" "x") */}}
{{- define "kpssh.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "kpssh.name" .root }}{{ .suffix }}
  namespace: {{ .namespace }}
  labels:
    {{- include "kpssh.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "kpssh.name" .root }}{{ .suffix }}
subjects:
  - kind: ServiceAccount
    name: {{ include "kpssh.serviceAccount" .root }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}
