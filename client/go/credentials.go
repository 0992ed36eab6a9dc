package wattwise

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// mostBytes is the largest size of a file that is read.
const mostBytes = 16 << 20

// Credentials are a token and the files for TLS. The zero value has neither.
type Credentials struct {
	// Token is the output of `wattwise token create`; empty: no token.
	Token string
	// TLS turns TLS on; so does any of the files below.
	TLS bool
	// CAFile has the trusted certificate authorities in PEM; empty: those of the system.
	CAFile string
	// CertFile and KeyFile are the client certificate and its key in PEM, for mutual TLS.
	CertFile, KeyFile string
	// Insecure sends the token without TLS even to another machine, where others can read it.
	Insecure bool
}

// CredentialsFromEnv reads WATTWISE_TOKEN, _TOKEN_FILE, _TLS, _TLS_CA, _TLS_CERT, _TLS_KEY and _INSECURE.
func CredentialsFromEnv() (credentials Credentials, err error) {
	var file string
	for name, value := range map[string]*string{
		"WATTWISE_TOKEN":      &credentials.Token,
		"WATTWISE_TOKEN_FILE": &file,
		"WATTWISE_TLS_CA":     &credentials.CAFile,
		"WATTWISE_TLS_CERT":   &credentials.CertFile,
		"WATTWISE_TLS_KEY":    &credentials.KeyFile,
	} {
		if *value, err = variable(name); err != nil {
			return Credentials{}, err
		}
	}
	if credentials.TLS, err = flag("WATTWISE_TLS"); err != nil {
		return credentials, err
	}
	if credentials.Insecure, err = flag("WATTWISE_INSECURE"); err != nil {
		return credentials, err
	}
	if credentials.Token == "" && file != "" {
		text, err := readFile(file)
		if err != nil {
			return credentials, fmt.Errorf("cannot read the token file: %w", err)
		}
		credentials.Token = strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff"))
	}
	return credentials, nil
}

// variable returns the value of an environment variable; the error does not show the value.
func variable(name string) (string, error) {
	text := os.Getenv(name)
	if strings.IndexFunc(text, unicode.IsControl) >= 0 {
		return "", fmt.Errorf("%s has a control character; remove it: files that were edited on Windows have one at the "+
			"end of each line", name)
	}
	return text, nil
}

// readFile reads a regular file of a limited size: a pipe would block the trainer, and a device may never end.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !found.Mode().IsRegular() || found.Size() > mostBytes {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, mostBytes)
	}
	return io.ReadAll(io.LimitReader(file, mostBytes))
}

func flag(name string) (bool, error) {
	text, err := variable(name)
	if err != nil {
		return false, err
	}
	switch text = strings.ToLower(text); text {
	case "1", "true", "yes", "on":
		return true, nil
	case "", "0", "false", "no", "off":
		return false, nil
	default:
		return false, fmt.Errorf("%s=%q is invalid; use 1 or 0", name, text)
	}
}

func (c Credentials) usesTLS() bool {
	return c.TLS || c.CAFile != "" || c.CertFile != "" || c.KeyFile != ""
}

func (c Credentials) dialOption(address destination) (grpc.DialOption, error) {
	if !c.usesTLS() {
		if c.Token != "" && !c.Insecure && !address.isLoopback() {
			return nil, fmt.Errorf("refusing to send the token to %s in clear text: enable TLS (WATTWISE_TLS=1 or TLS), "+
				"or allow it if the network is trusted (WATTWISE_INSECURE=1 or Insecure)", address.target)
		}
		return grpc.WithInsecure(), nil
	}
	config, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(config)), nil
}

func (c Credentials) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := readFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read CAFile: %w; choose a readable file", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s (CAFile) contains no PEM certificate: it should start with "+
				"-----BEGIN CERTIFICATE-----", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		if c.KeyFile == "" {
			return nil, errors.New("CertFile is set without KeyFile: set both, a certificate and its key")
		}
		if c.CertFile == "" {
			return nil, errors.New("KeyFile is set without CertFile: set both, a certificate and its key")
		}
		pair, err := loadPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s (CertFile) and %s (KeyFile) are not a certificate and its key (%w): both must be "+
				"PEM files, must belong together, and the key must have no passphrase", c.CertFile, c.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func loadPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := readFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// isLoopback returns whether all traffic stays on this machine.
func (d destination) isLoopback() bool {
	return d.all(isLoopback)
}

// isThisMachine returns whether all servers are this machine by their text: any loopback address or name, or its own name.
// A name may lead elsewhere, so that this is no reason to send a token in clear text.
func (d destination) isThisMachine() bool {
	return d.all(func(host string) bool {
		own, _ := os.Hostname()
		own = strings.ToLower(own)
		short, _, _ := strings.Cut(own, ".")
		return isLoopback(host) || net.ParseIP(host).IsUnspecified() || shortLoopback.MatchString(host) ||
			strings.HasSuffix(host, ".localhost") || loopbackNames[host] || host != "" && (host == own || host == short)
	})
}

// all returns whether something holds for the hosts of all servers, which are in small letters and without a dot at the end.
func (d destination) all(holds func(host string) bool) bool {
	for _, server := range d.servers {
		host, _, _ := net.SplitHostPort(server)
		if !holds(strings.TrimSuffix(strings.ToLower(host), ".")) {
			return false
		}
	}
	return true
}

func isLoopback(host string) bool {
	ip := host
	if strings.Contains(host, ":") {
		// Without the zone of its interface.
		ip, _, _ = strings.Cut(host, "%")
	}
	return host == "localhost" || net.ParseIP(ip).IsLoopback()
}

var loopbackNames = map[string]bool{"localhost.localdomain": true, "localhost4": true, "localhost6": true,
	"ip6-localhost": true, "ip6-loopback": true}

// shortLoopback is what resolvers make of a short IPv4 address, and the address of no interface, which Linux connects to
// itself.
var shortLoopback = regexp.MustCompile(`^(127(\.\d+){1,2}|0(\.0){0,3})$`)
