{{- /*
Blocks that node.yaml, fleet.yaml and standalone.yaml share. Each takes the mapping that those files make:
.part (node, fleet or standalone), .config (of that part), .Values and .Release.
They are called with `template`, not `include`: the tests render with Go's text/template, which has no `include`.
So a block holds whole lines, indented for the place where it is used.
*/}}

{{- define "sizewatch.labels" -}}
{app.kubernetes.io/name: sizewatch, app.kubernetes.io/component: {{ .part }}}
{{- end }}

{{- define "sizewatch.metadata" -}}
metadata:
  name: sizewatch-{{ .part }}
  labels: {{ template "sizewatch.labels" . }}
{{- end }}

{{- /* The account of a part. Only pods that ask for the token get it. */}}
{{- define "sizewatch.account" -}}
apiVersion: v1
kind: ServiceAccount
{{ template "sizewatch.metadata" . }}
automountServiceAccountToken: false
{{- end }}

{{- /* The permissions of discovery on a node. RBAC has no field selector: reading the pods of one node needs all pods. */}}
{{- define "sizewatch.discovery-role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
{{ template "sizewatch.metadata" . }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: sizewatch-{{ .part }}
subjects:
  - kind: ServiceAccount
    name: sizewatch-{{ .part }}
    namespace: {{ .Release.Namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
{{ template "sizewatch.metadata" . }}
rules:
  - apiGroups: ['']
    resources: [pods]
    verbs: [list, watch]
{{- end }}

{{- define "sizewatch.config-map" -}}
apiVersion: v1
kind: ConfigMap
{{ template "sizewatch.metadata" . }}
data:
  sizewatch.yaml: |
    {{- toYaml .config | nindent 4 }}
{{- end }}

{{- define "sizewatch.service" -}}
apiVersion: v1
kind: Service
{{ template "sizewatch.metadata" . }}
spec:
  selector: {{ template "sizewatch.labels" . }}
  ports:
    - {name: http, port: 19095, targetPort: http, protocol: TCP}
{{- end }}

{{- define "sizewatch.network-policy" -}}
{{- if .Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
{{ template "sizewatch.metadata" . }}
spec:
  podSelector:
    matchLabels: {{ template "sizewatch.labels" . }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ .Values.networkPolicy.prometheusNamespace | quote }}
      ports:
        - {port: http, protocol: TCP}
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
              kubernetes.io/metadata.name: {{ .Values.networkPolicy.prometheusNamespace | quote }}
      ports:
        {{- toYaml .Values.networkPolicy.storePorts | nindent 8 }}
    {{- else }}
    - ports:
        {{- toYaml .Values.networkPolicy.apiPorts | nindent 8 }}
    - to:
        - namespaceSelector: {}
      ports:
        {{- toYaml .Values.networkPolicy.enginePorts | nindent 8 }}
    - to:
        - namespaceSelector: {}
      ports:
        {{- toYaml .Values.networkPolicy.gpuExporterPorts | nindent 8 }}
    {{- end }}
{{- end }}
{{- end }}

{{- /* The spec of the pod. Role fleet runs anywhere; the others run where the engines are. Role node has no history. */}}
{{- define "sizewatch.pod" -}}
{{- $onGpuNode := ne .part "fleet" }}
{{- $hasHistory := ne .part "node" }}
{{- $podResources := and $onGpuNode .Values.node.podResources }}
{{- $secret := ternary .Values.node.secretName .Values.fleet.secretName $onGpuNode }}
      serviceAccountName: sizewatch-{{ .part }}
      # Only discovery on a node asks the API server.
      automountServiceAccountToken: {{ $onGpuNode }}
      enableServiceLinks: false
      {{- if $onGpuNode }}
      {{- with .Values.node.runtimeClassName }}
      runtimeClassName: {{ . | quote }}
      {{- end }}
      nodeSelector:
        {{- toYaml .Values.node.nodeSelector | nindent 8 }}
      tolerations:
        {{- toYaml .Values.node.tolerations | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: 30
      {{- with .Values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        # The user of the image; no account of any node.
        runAsUser: 10001
        runAsGroup: 10001
        # Group of the mounted Secrets, so that this user can read them.
        fsGroup: 10001
        {{- if eq .part "standalone" }}
        fsGroupChangePolicy: OnRootMismatch
        {{- end }}
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: sizewatch
          image: "{{ ternary .Values.image.full .Values.image.node $hasHistory }}:{{ .Values.image.tag }}"
          imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
          args: [run, -c, /etc/sizewatch/sizewatch.yaml]
          env:
            - name: NODE_NAME
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            {{- if $onGpuNode }}
            # glibc's arenas of a dozen threads cost 1 to 2 MiB.
            - {name: MALLOC_ARENA_MAX, value: '2'}
            # NVML through NVIDIA's container runtime; no GPU is reserved.
            - {name: NVIDIA_VISIBLE_DEVICES, value: all}
            - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
            {{- end }}
          ports:
            - {name: http, containerPort: 19095, protocol: TCP}
          resources:
            {{- toYaml (ternary .Values.fleet.resources .Values.node.resources $hasHistory) | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
            {{- if $podResources }}
            # The kubelet's socket belongs to user 0. Without capabilities, user 0 has no other right.
            runAsNonRoot: false
            runAsUser: 0
            runAsGroup: 0
            {{- end }}
          livenessProbe:
            httpGet: {path: /healthz, port: http, scheme: {{ .Values.web.scheme }}}
            initialDelaySeconds: 10
            periodSeconds: 15
            timeoutSeconds: 5
            failureThreshold: 4
          readinessProbe:
            httpGet: {path: /readyz, port: http, scheme: {{ .Values.web.scheme }}}
            periodSeconds: 10
            timeoutSeconds: 5
          volumeMounts:
            - {name: config, mountPath: /etc/sizewatch, readOnly: true}
            {{- if $secret }}
            - {name: secrets, mountPath: /etc/sizewatch-secrets, readOnly: true}
            {{- end }}
            {{- if $podResources }}
            - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
            {{- end }}
            {{- if $hasHistory }}
            - {name: data, mountPath: /var/lib/sizewatch}
            - {name: tmp, mountPath: /tmp}
            {{- end }}
      volumes:
        # Both in one folder, without subPath: a changed ConfigMap is then seen without a restart.
        - name: config
          projected:
            defaultMode: 0444
            sources:
              - configMap:
                  name: sizewatch-{{ .part }}
                  items: [{key: sizewatch.yaml, path: sizewatch.yaml}]
              - configMap:
                  name: sizewatch-plan
                  items: [{key: plan.yaml, path: plan.yaml}]
        {{- if $secret }}
        - name: secrets
          secret:
            secretName: {{ $secret | quote }}
            defaultMode: 0440
        {{- end }}
        {{- if $podResources }}
        - name: pod-resources
          hostPath: {path: /var/lib/kubelet/pod-resources, type: Directory}
        {{- end }}
        {{- if eq .part "fleet" }}
        - name: data
          emptyDir: {sizeLimit: {{ .Values.fleet.cacheSize | quote }}}
        {{- end }}
        {{- if $hasHistory }}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- end }}
{{- end }}
