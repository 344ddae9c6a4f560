{{- /*
Blocks that the templates share. A block of a part takes `root` (the whole context) and `part` (node, fleet, standalone or
sidecar). A part's values are those of its own section.
*/}}

{{- /* The release's name where it says sizewatch, else both. A StatefulSet's name may have 52 characters: a label of its pods
adds a revision to it. So 41 are left before -standalone. A Service's name begins with a letter and has no dot. */}}
{{- define "sizewatch.fullname" -}}
{{- $name := default "sizewatch" .Values.nameOverride }}
{{- $release := replace "." "-" .Release.Name }}
{{- if regexMatch "^[0-9]" $release }}
{{- fail (printf "release %s: take a name that begins with a letter, as the name of a Service does" .Release.Name) }}
{{- end }}
{{- ternary $release (printf "%s-%s" $release $name) (contains $name $release) | trunc 41 | trimSuffix "-" }}
{{- end }}

{{- define "sizewatch.name" -}}
{{- include "sizewatch.fullname" .root }}-{{ .part }}
{{- end }}

{{- /* A name in no namespace, of which two releases must not take the same. */}}
{{- define "sizewatch.cluster-name" -}}
{{- .root.Release.Namespace }}-{{ include "sizewatch.name" . }}
{{- end }}

{{- define "sizewatch.release-labels" -}}
app.kubernetes.io/name: sizewatch
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "sizewatch.selector-labels" -}}
{{ include "sizewatch.release-labels" .root }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "sizewatch.common-labels" -}}
{{ include "sizewatch.release-labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "sizewatch.labels" -}}
{{ include "sizewatch.common-labels" .root }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "sizewatch.metadata" -}}
metadata:
  name: {{ include "sizewatch.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "sizewatch.labels" . | nindent 4 }}
{{- end }}

{{- define "sizewatch.cluster-metadata" -}}
metadata:
  name: {{ include "sizewatch.cluster-name" . }}
  labels:
    {{- include "sizewatch.labels" . | nindent 4 }}
{{- end }}

{{- /* A part without a web configuration file cannot serve TLS, whatever the others do. */}}
{{- define "sizewatch.scheme" -}}
{{- ternary .root.Values.web.scheme "HTTP" (hasKey (index .root.Values .part).config.web "config_file") }}
{{- end }}

{{- /* The account of a part. Only pods that ask for the token get it. */}}
{{- define "sizewatch.account" -}}
apiVersion: v1
kind: ServiceAccount
{{ include "sizewatch.metadata" . }}
automountServiceAccountToken: false
{{- end }}

{{- /* The permissions of discovery on a node. RBAC has no field selector: reading the pods of one node needs all pods. The
agent asks a namespace of its own path where it is the only one, and then needs its Role alone. */}}
{{- define "sizewatch.discovery-role" -}}
{{- $namespaces := dig "discovery" "kubernetes" "namespaces" list (index .root.Values .part).config }}
{{- $kind := ternary "Role" "ClusterRole" (eq (len $namespaces) 1) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
{{ include "sizewatch.cluster-metadata" . }}
{{- if eq $kind "Role" }}
  namespace: {{ first $namespaces | quote }}
{{- end }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ include "sizewatch.cluster-name" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "sizewatch.name" . }}
    namespace: {{ .root.Release.Namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
{{ include "sizewatch.cluster-metadata" . }}
{{- if eq $kind "Role" }}
  namespace: {{ first $namespaces | quote }}
{{- end }}
rules:
  - apiGroups: ['']
    resources: [pods]
    verbs: [list, watch]
{{- end }}

{{- define "sizewatch.config-map" -}}
apiVersion: v1
kind: ConfigMap
{{ include "sizewatch.metadata" . }}
data:
  sizewatch.yaml: |
    {{- toYaml (index .root.Values .part).config | nindent 4 }}
{{- end }}

{{- define "sizewatch.service" -}}
apiVersion: v1
kind: Service
{{ include "sizewatch.metadata" . }}
spec:
  selector:
    {{- include "sizewatch.selector-labels" . | nindent 4 }}
  ports:
    - {name: http, port: 19095, targetPort: sizewatch, protocol: TCP}
{{- end }}

{{- define "sizewatch.network-policy" -}}
{{- $policy := .root.Values.networkPolicy }}
{{- if $policy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
{{ include "sizewatch.metadata" . }}
spec:
  podSelector:
    matchLabels:
      {{- include "sizewatch.selector-labels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ $policy.prometheusNamespace | quote }}
      ports:
        - {port: sizewatch, protocol: TCP}
  egress:
    - to:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: kube-system
          podSelector:
            matchLabels:
              k8s-app: kube-dns
      ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
    {{- if eq .part "fleet" }}
    - to:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ $policy.prometheusNamespace | quote }}
      ports:
        {{- toYaml $policy.storePorts | nindent 8 }}
    {{- else }}
    - ports:
        {{- toYaml $policy.apiPorts | nindent 8 }}
    - to:
        - namespaceSelector: {}
      ports:
        {{- concat $policy.enginePorts $policy.gpuExporterPorts | toYaml | nindent 8 }}
    {{- end }}
{{- end }}
{{- end }}

{{- /* The container. Roles node and sidecar have no history. A sidecar has no readiness probe: it could take its engine out
of service; and its pod's own settings are the engine's. */}}
{{- define "sizewatch.container" -}}
{{- $values := .root.Values }}
{{- $own := index $values .part }}
{{- $hasHistory := has .part (list "fleet" "standalone") }}
{{- $isSidecar := eq .part "sidecar" }}
{{- $environment := dict }}
{{- /* NVML through NVIDIA's container runtime; no GPU is reserved. */}}
{{- if eq (dig "gpus" "source" "" $own.config) "nvml" }}
{{- $_ := set $environment "NVIDIA_VISIBLE_DEVICES" (default "all" $own.visibleDevices) }}
{{- $_ := set $environment "NVIDIA_DRIVER_CAPABILITIES" "utility" }}
{{- end }}
{{- /* glibc's arenas of a dozen threads cost 1 to 2 MiB. */}}
{{- if ne .part "fleet" }}
{{- $_ := set $environment "MALLOC_ARENA_MAX" "2" }}
{{- end }}
{{- range $own.extraEnv }}
{{- if has .name (list "NODE_NAME" "POD_NAME" "POD_NAMESPACE") }}
{{- fail (printf "%s.extraEnv: the chart sets %s itself" $.part .name) }}
{{- end }}
{{- $_ := unset $environment .name }}
{{- end }}
{{- $image := ternary $values.image.full $values.image.node $hasHistory }}
{{- $port := $own.config.web.listen | splitList ":" | last }}
{{- $probePort := dig "web" "probe_listen" "" $own.config | splitList ":" | last }}
{{- $probed := ternary "port: sizewatch-probe, scheme: HTTP" (printf "port: sizewatch, scheme: %s" (include "sizewatch.scheme" .)) (ne $probePort "") -}}
name: sizewatch
image: {{ ternary $image (printf "%s:%s" $image $values.image.tag) (contains "@" $image) | quote }}
imagePullPolicy: {{ $values.image.pullPolicy | quote }}
args: [run, -c, /etc/sizewatch/sizewatch.yaml]
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  {{- range $name, $value := $environment }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- with $own.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: sizewatch, containerPort: {{ $port }}, protocol: TCP}
  {{- with $probePort }}
  - {name: sizewatch-probe, containerPort: {{ . }}, protocol: TCP}
  {{- end }}
resources:
  {{- toYaml $own.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  {{- if $own.podResources }}
  # The kubelet's socket belongs to user 0. Without capabilities, user 0 has no other right.
  runAsNonRoot: false
  runAsUser: 0
  runAsGroup: 0
  {{- else if $isSidecar }}
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
  {{- end }}
livenessProbe:
  httpGet: {path: /healthz, {{ $probed }}}
  initialDelaySeconds: 10
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
{{- if not $isSidecar }}
readinessProbe:
  httpGet: {path: /readyz, {{ $probed }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}
volumeMounts:
  - {name: sizewatch-config, mountPath: /etc/sizewatch, readOnly: true}
  {{- if $own.secretNames }}
  - {name: sizewatch-secrets, mountPath: /etc/sizewatch-secrets, readOnly: true}
  {{- end }}
  {{- if $own.podResources }}
  - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
  {{- end }}
  {{- if $hasHistory }}
  - {name: data, mountPath: /var/lib/sizewatch}
  - {name: tmp, mountPath: /tmp}
  {{- end }}
{{- end }}

{{- define "sizewatch.volumes" -}}
{{- $own := index .root.Values .part -}}
# Both in one folder, without subPath: a changed ConfigMap is then seen without a restart.
- name: sizewatch-config
  projected:
    defaultMode: 0444
    sources:
      - configMap:
          name: {{ include "sizewatch.name" . }}
          items: [{key: sizewatch.yaml, path: sizewatch.yaml}]
      - configMap:
          name: {{ include "sizewatch.fullname" .root }}-plan
          items: [{key: plan.yaml, path: plan.yaml}]
{{- with $own.secretNames }}
- name: sizewatch-secrets
  projected:
    # The group is that of the pod's fsGroup. An engine's pod has none of ours, and mounts these into the sidecar alone.
    defaultMode: {{ ternary "0444" "0440" (eq $.part "sidecar") }}
    sources:
      {{- range . }}
      - secret: {name: {{ . | quote }}}
      {{- end }}
{{- end }}
{{- if $own.podResources }}
- name: pod-resources
  hostPath: {path: /var/lib/kubelet/pod-resources, type: Directory}
{{- end }}
{{- with $own.cacheSize }}
- name: data
  {{- if $own.claimName }}
  persistentVolumeClaim: {claimName: {{ $own.claimName | quote }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- if has .part (list "fleet" "standalone") }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- end }}

{{- /* The template of a workload's pods. */}}
{{- define "sizewatch.pod-template" -}}
{{- $own := index .root.Values .part -}}
metadata:
  labels:
    {{- include "sizewatch.labels" . | nindent 4 }}
  annotations:
    kubectl.kubernetes.io/default-container: sizewatch
    {{- with $own.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "sizewatch.name" . }}
  # Only discovery on a node asks the API server.
  automountServiceAccountToken: {{ ne .part "fleet" }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  {{- if $own.priorityClass }}
  priorityClassName: {{ include "sizewatch.cluster-name" . }}
  {{- end }}
  {{- with $own.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" }}
  {{- with index $own $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    # The user of the image; no account of any node.
    runAsUser: 10001
    runAsGroup: 10001
    # Group of the mounted Secrets and of the volume, so that this user can read them.
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    -
      {{- include "sizewatch.container" . | nindent 6 }}
  volumes:
    {{- include "sizewatch.volumes" . | nindent 4 }}
{{- end }}
