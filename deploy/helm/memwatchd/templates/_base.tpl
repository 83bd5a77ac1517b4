{{/* A manifest of base/ with the namespace of the release, as YAML. Call with (list $ FILE LABELS). */}}
{{- define "memwatchd.base" -}}
{{- $root := index . 0 -}}
{{- $manifest := $root.Files.Get (printf "base/%s" (index . 1)) | fromYaml -}}
{{- $_ := set $manifest.metadata "namespace" $root.Release.Namespace -}}
{{- with index . 2 -}}
{{- $_ := set $manifest.metadata "labels" (merge (dict) . ($manifest.metadata.labels | default dict)) -}}
{{- end -}}
{{- toYaml $manifest -}}
{{- end -}}
