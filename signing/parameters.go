package signing

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// MaxParametersSize bounds an encoded parameters frame, in bytes.
const MaxParametersSize = 256 << 10

// EncodeParameters is the canonical encoding of an order's parameters, whose Digest the order
// carries: a JSON object of strings, names sorted, no HTML escapes, no white space.
func EncodeParameters(params map[string]string) ([]byte, error) {
	if err := checkParameterFrame(params); err != nil {
		return nil, err
	}
	if params == nil {
		params = map[string]string{}
	}
	b, err := encode(params)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxParametersSize {
		return nil, refuse(ReasonTooLarge, "parameters have %d bytes, at most %d", len(b), MaxParametersSize)
	}
	return b, nil
}

// DecodeParameters reads what EncodeParameters wrote, and nothing else.
func DecodeParameters(frame []byte) (_ map[string]string, err error) {
	defer refusePanic(&err)
	if len(frame) > MaxParametersSize {
		return nil, refuse(ReasonTooLarge, "parameters have %d bytes, at most %d", len(frame), MaxParametersSize)
	}
	if !utf8.Valid(frame) {
		return nil, refuse(ReasonMalformed, "parameters are not UTF-8")
	}
	var params map[string]string
	if err := json.Unmarshal(frame, &params); err != nil {
		return nil, refuse(ReasonMalformed, "parameters cannot be read")
	}
	again, err := EncodeParameters(params)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, frame) {
		return nil, refuse(ReasonMalformed, "parameters are not in canonical form")
	}
	return params, nil
}

func checkParameterFrame(params map[string]string) error {
	if len(params) > maxParameters {
		return refuse(ReasonTooLarge, "%d parameters, at most %d", len(params), maxParameters)
	}
	for name, value := range params {
		if !isParameterName(name) {
			return refuse(ReasonParam, "%.80q is not a KPSSH_ name", name)
		}
		if !isText(value) {
			return refuse(ReasonParam, "%s holds control characters or invalid UTF-8", name)
		}
	}
	return nil
}
